"""Several locks as one, with faults at each step, two stores, losses, closed clients and dropped leases.

Hazards: some of the locks stay held, a lease is released in part, a loss is reported twice or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.lab import Actor, Lab, until
from tests.support.faulty import BUG, DOWN, LOST, NO_REPLY, NOT_ALL, OK, REFUSED, TOO_FEW, Faults

NAMES = ["a", "b", "c"]
SHORT = 0.6  # seconds: a ttl that a busy machine can still renew in time


@pytest.fixture
def second(lab: Lab, tmp_path: Path) -> Lab:
    """A lab on another kind of store, with the same API."""
    return Lab(f"sqlite://{tmp_path}/locks.db", lab.runtime)


async def until_free(lab: Lab, *names: str) -> None:
    """Wait until none of the locks has a holder or a waiter."""

    async def is_free() -> bool:
        infos = [await lab.state(name) for name in names or NAMES]
        return not any(info.holders or info.waiters for info in infos)

    await until(is_free, f"{names or NAMES} are free again")


def nothing_is_published(actor: Actor) -> bool:
    engine = actor.client._current
    return not engine._leases and not engine._acquiring


async def until_true(condition: Callable[[], bool], description: str) -> None:
    async def is_true() -> bool:
        return condition()

    await until(is_true, description)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (DOWN, holdfast.BackendUnavailable),
        (REFUSED, holdfast.ConfigurationError),
        (TOO_FEW, holdfast.QuorumError),
        (BUG, ZeroDivisionError),
    ],
)
async def test_an_unreachable_store_raises_at_once_and_nothing_is_kept(
    lab: Lab, faults: Faults, outcome: str, error: type[Exception]
) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", outcome)

    with pytest.raises(error):
        await actor(lambda client: client.lock_all(NAMES).acquire())

    assert faults.count("try_acquire_all") == 1
    assert nothing_is_published(actor)
    await until_free(lab)


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY])
async def test_an_acquire_continues_after_a_step_without_an_answer(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", outcome, OK)

    lease = await actor(lambda client: client.lock_all(NAMES, timeout=60).acquire())

    assert lease.held
    for name in NAMES:
        assert [holder.fence for holder in (await lab.state(name)).holders] == [lease.fences[name]]
    await actor(lambda _: lease.release())
    await until_free(lab)
    assert nothing_is_published(actor)


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY, 0.3])
async def test_a_request_without_an_answer_raises_when_the_call_does_not_wait(
    lab: Lab, faults: Faults, outcome: Any
) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", outcome)

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda client: client.lock_all(NAMES, ttl=0.2).acquire(timeout=0))

    assert nothing_is_published(actor)
    await until_free(lab)


async def test_an_answer_after_the_deadline_is_not_a_grant(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", 0.8, OK)

    lease = await actor(lambda client: client.lock_all(NAMES, ttl=SHORT, timeout=60).acquire())

    lease.check()
    for name in NAMES:
        assert [holder.fence for holder in (await lab.state(name)).holders] == [lease.fences[name]]


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY, BUG])
async def test_an_error_at_a_later_lock_releases_the_earlier_ones(lab: Lab, faults: Faults, outcome: str) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("b").acquire())
    acquiring = lab.start(actor, lambda client: client.lock_all(NAMES, timeout=60).acquire())
    await lab.until_waiting("b", 1)  # "a" has been acquired

    faults.plan("try_acquire", outcome)
    faults.plan("wait", 0, OK)
    await holder(lambda _: held.release())
    if outcome is BUG:
        with pytest.raises(ZeroDivisionError):
            await acquiring
    else:  # the wait continues after an outage
        await until_true(lambda: faults.count("try_acquire") > 4, "some attempts")
        faults.plan("try_acquire", OK)
        assert (await acquiring).held
        faults.plan("release", OK)
        await actor(lambda client: client.close())

    await until_free(lab)


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY])
async def test_a_timeout_whose_withdrawal_gets_no_answer_is_still_a_timeout(
    lab: Lab, faults: Faults, outcome: str
) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("c").acquire())
    faults.plan("release", outcome, outcome, OK)

    assert await actor(lambda client: client.lock_all(NAMES).acquire(timeout=0.1)) is None

    assert nothing_is_published(actor)
    held.check()
    await until_free(lab, "a", "b")


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY, NOT_ALL])
async def test_a_release_without_an_answer_can_be_repeated(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    locks = actor.client.lock_all(NAMES)
    lease = await actor(lambda _: locks.acquire())
    faults.plan("release", outcome, OK)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: locks.release())
    assert not lease.held
    assert not lease.lost
    await actor(lambda _: locks.release())

    with pytest.raises(holdfast.NotHeld):
        await actor(lambda _: lease.release())
    await until_free(lab)


async def test_a_body_is_not_failed_by_a_release_without_an_answer(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("release", LOST, OK)

    assert await actor.body(lambda client: client.lock_all(NAMES), lambda lease: lease.fences)

    await until_free(lab)


async def test_a_lease_lost_during_the_wait_for_the_next_lock_is_acquired_again(lab: Lab, faults: Faults) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("b").acquire())
    acquiring = lab.start(actor, lambda client: client.lock_all(NAMES, timeout=60).acquire())
    await lab.until_waiting("b", 1)
    first = (await lab.state("a")).holders[0].fence
    assert first is not None

    assert await holder(lambda client: client.break_lock("a", first))
    await report_loss(actor)
    await holder(lambda _: held.release())

    lease = await acquiring
    lease.check()
    assert lease.fences["a"] > first


async def report_loss(actor: Actor) -> None:
    """Report the loss now. The keeper would detect it after a third of the ttl."""
    engine = actor.client._current
    (ref,) = engine._leases.values()
    engine.lose(ref(), "it was broken")


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_lease_has_its_events(lab: Lab) -> None:
    actor = lab.actor()
    events: list[tuple[str, str]] = []
    actor.client.subscribe(lambda event: events.append((event.kind, event.lock)))

    await actor.body(lambda client: client.lock_all(["b", "a"]), lambda _: None)

    acquired = [(kind, name) for name in "ab" for kind in ("acquiring", "acquired")]
    assert events == [*acquired, ("released", "a"), ("released", "b")]


# ── releases ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_two_concurrent_releases_one_succeeds_and_no_loss_is_reported(lab: Lab, faults: Faults) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    reported: list[Any] = []
    lease = await first(lambda client: client.lock_all(NAMES, on_lost=reported.append).acquire())
    faults.plan("release", 0.5, OK)

    releasing = lab.start(first, lambda _: lease.release())
    await until_true(lambda: faults.count("release") == 1, "the first release is in flight")
    with pytest.raises(holdfast.NotHeld):
        await second(lambda _: lease.release())
    await releasing

    assert not lease.lost
    assert reported == []


async def test_a_loss_raised_at_the_end_of_a_body_is_not_raised_again_by_the_lock(lab: Lab) -> None:
    actor = lab.actor()
    locks = actor.client.lock_all(NAMES, ttl=SHORT)

    def lose(lease: Any) -> None:
        lease._leases[1]._engine.lose(lease._leases[1], "it was broken")

    with pytest.raises(holdfast.LockLost):
        await actor.body(lambda _: locks, lose)

    with pytest.raises(holdfast.NotHeld):
        await actor(lambda _: locks.release())
    lease = await actor(lambda _: locks.acquire(timeout=60))
    assert list(locks._kept.values()) == [[lease]]  # the lost lease is no longer kept


async def test_a_lost_lease_is_still_lost_after_a_release(lab: Lab) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock_all(NAMES).acquire())
    lease._leases[2]._engine.lose(lease._leases[2], "it was broken")

    for _ in range(2):
        with pytest.raises(holdfast.LockLost, match=r"lock 'c'.*it was broken.*with it a"):
            await actor(lambda _: lease.release())

    assert lease.lost
    assert "lost" in repr(lease)
    assert not lease.held


async def test_a_renewal_that_finds_one_lease_gone_reports_the_loss_of_all(lab: Lab) -> None:
    actor, operator = lab.actor(), lab.actor()
    lease = await actor(lambda client: client.lock_all(NAMES, renew=False).acquire())
    assert await operator(lambda client: client.break_lock("b", lease.fences["b"]))

    with pytest.raises(holdfast.LockLost, match=r"lock 'b'.*and with it a \+ c"):
        await actor(lambda _: lease.renew())

    await until_free(lab)


# ── two stores ───────────────────────────────────────────────────────────────────────────────────────────────────────


def across(actor_a: Actor, actor_b: Actor, **options: Any) -> Any:
    """A group of two locks on each store; both stores have a lock named "c"."""
    return actor_a.client.lock_all([actor_b.client.lock("b"), "c", actor_b.client.lock("c"), "a"], **options)


async def test_locks_of_two_stores_are_acquired_and_released_as_one(lab: Lab, second: Lab) -> None:
    actor_a, actor_b = lab.actor(), second.actor()
    locks = across(actor_a, actor_b)

    lease = await actor_a(lambda _: locks.acquire(timeout=60))

    assert lease.names == ("a", "b", "c", "c")
    for store_lab, name in ((lab, "a"), (second, "b"), (lab, "c"), (second, "c")):
        assert len((await store_lab.state(name)).holders) == 1
    assert (await lab.state("b")).holders == ()
    await actor_a(lambda _: lease.renew())
    await actor_a(lambda _: lease.release())
    await until_free(lab)
    await until_free(second)


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_no_lock_is_kept_on_a_store_when_a_lock_of_the_other_store_is_busy(
    lab: Lab, second: Lab, timeout: float
) -> None:
    actor_a, actor_b, holder = lab.actor(), second.actor(), second.actor()
    held = await holder(lambda client: client.lock("c").acquire())

    assert await actor_a(lambda _: across(actor_a, actor_b).acquire(timeout=timeout)) is None

    await until_free(lab)
    await until_free(second, "b")
    held.check()


async def test_two_clients_with_the_opposite_order_never_deadlock(lab: Lab, second: Lab) -> None:
    pairs = [(lab.actor(), second.actor()) for _ in range(2)]

    async def rounds(actor_a: Actor, actor_b: Actor, step: int) -> int:
        done = 0
        for _ in range(10):
            names = ["a", actor_b.client.lock("b"), "c", actor_b.client.lock("d")][::step]
            done += await actor_a.body(lambda client, names=names: client.lock_all(names, timeout=60), lambda _: 1)
        return done

    counts = await asyncio.gather(*(rounds(*pair, step) for pair, step in zip(pairs, (1, -1), strict=True)))

    assert counts == [10, 10]


async def test_a_loss_on_one_store_is_reported_once_and_frees_the_other(lab: Lab, second: Lab) -> None:
    actor_a, actor_b, operator = lab.actor(), second.actor(), second.actor()
    reported: list[Any] = []
    locks = actor_a.client.lock_all(["a", actor_b.client.lock("b", ttl=SHORT)], on_lost=reported.append)
    lease = await actor_a(lambda _: locks.acquire())
    waiting = lab.start(actor_a, lambda _: lease.wait_lost(60))

    assert await operator(lambda client: client.break_lock("b", lease.fences["b"]))

    assert await waiting
    assert lease.lost
    with pytest.raises(holdfast.LockLost, match=r"lock 'b'.*and with it a"):
        lease.check()
    await until_free(lab)
    await until_true(lambda: bool(reported), "the callback was called")
    with pytest.raises(holdfast.LockLost):
        await actor_a(lambda _: lease.release())
    assert reported == [lease]


async def test_a_loss_on_one_store_during_the_release_of_the_other_stays_a_loss(
    lab: Lab, second: Lab, faults: Faults
) -> None:
    actor_a, actor_b = lab.actor(), second.actor()
    lost: list[holdfast.Event] = []
    actor_b.client.subscribe(lambda event: lost.append(event) if event.kind == "lost" else None)
    locks = actor_a.client.lock_all(["a", actor_b.client.lock("b", ttl=0.3, renew=False)])
    lease = await actor_a(lambda _: locks.acquire())
    first, last = sorted(lease._leases, key=lambda lease: lease._engine._serial)
    assert (first.name, last.name) == ("a", "b")
    faults.plan("release", 0.5, OK)

    with pytest.raises(holdfast.LockLost, match="'b'"):
        await actor_a(lambda _: lease.release())

    assert lease.lost
    await until_true(lambda: len(lost) == 1, "the event")
    await until_free(lab)
    await until_free(second)


async def test_one_store_that_is_down_leaves_nothing_on_the_other(lab: Lab, second: Lab, faults: Faults) -> None:
    actor_a, actor_b = lab.actor(), second.actor()
    faults.plan("try_acquire_all", DOWN)
    faults.plan("try_acquire", DOWN)
    locks = actor_a.client.lock_all([actor_b.client.lock("a"), actor_b.client.lock("b"), "c"])

    for timeout in (0, 60):
        with pytest.raises(holdfast.BackendUnavailable):
            await actor_a(lambda _, timeout=timeout: locks.acquire(timeout=timeout))
        await until_free(second)

    assert nothing_is_published(actor_b)


async def test_a_release_that_one_store_does_not_answer_is_done_on_the_other(
    lab: Lab, second: Lab, faults: Faults
) -> None:
    actor_a, actor_b = lab.actor(), second.actor()
    locks = across(actor_a, actor_b)
    lease = await actor_a(lambda _: locks.acquire())
    faults.plan("release", DOWN)

    with pytest.raises(holdfast.BackendUnavailable):
        await actor_a(lambda _: lease.release())

    await until_free(second)
    assert not lease.held
    assert not lease.lost
    faults.plan("release", OK)
    await actor_a(lambda _: locks.release())
    await until_free(lab)


# ── asyncio: the body ────────────────────────────────────────────────────────────────────────────────────────────────


class TwoStores:
    def __init__(self, tmp_path: Path) -> None:
        self.client = holdfast.AsyncClient("memory://")
        self.other = holdfast.AsyncClient(f"sqlite://{tmp_path}/locks.db")

    def locks(self, **options: Any) -> holdfast.AsyncLockAll:
        return self.client.lock_all(["a", self.other.lock("b", ttl=0.1, renew=False)], **options)

    async def aclose(self) -> None:
        await self.client.close()
        await self.other.close()


@pytest.fixture
def two_stores(tmp_path: Path) -> TwoStores:
    return TwoStores(tmp_path)


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_the_loss_of_one_cancels_the_body(two_stores: TwoStores) -> None:
    with pytest.raises(holdfast.LockLost, match=r"'b'.*and with it a") as caught:
        async with two_stores.locks():
            await asyncio.sleep(60)

    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert current_task().cancelling() == 0
    await asyncio.sleep(0)  # no cancellation remains
    async with two_stores.client.lock("a", timeout=30):
        pass


async def test_on_lost_event_leaves_the_body_alone(two_stores: TwoStores) -> None:
    finished = False

    with pytest.raises(holdfast.LockLost):
        async with two_stores.locks(on_lost="event") as lease:
            assert await lease.wait_lost()
            await asyncio.sleep(0.01)
            finished = True

    assert finished


async def test_the_exception_of_a_body_is_raised_instead_of_the_loss(two_stores: TwoStores) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with two_stores.locks():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    assert "'b'" in caught.value.__notes__[0]
    assert current_task().cancelling() == 0


async def test_a_body_that_swallows_the_cancellation_still_ends_with_the_loss(two_stores: TwoStores) -> None:
    with pytest.raises(holdfast.LockLost):
        async with two_stores.locks():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    assert current_task().cancelling() == 0


async def test_a_cancellation_by_other_code_is_raised_instead_of_the_loss(two_stores: TwoStores) -> None:
    async def work() -> None:
        async with two_stores.locks():
            try:
                await asyncio.sleep(60)
            finally:
                current_task().cancel()  # as another thread would at the same moment

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task

    assert task.cancelled()


async def test_leases_can_be_entered_with_async_with(two_stores: TwoStores) -> None:
    lease = await two_stores.locks().acquire()
    assert lease is not None

    with pytest.raises(holdfast.LockLost):
        async with lease:
            await asyncio.sleep(60)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_is_closed_while_its_locks_are_waited_for_leaves_none_behind(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    closer = lab.actor(like=waiter)
    await holder(lambda client: client.lock("b").acquire())
    waiting = lab.start(waiter, lambda client: client.lock_all(NAMES).acquire())
    await lab.until_waiting("b", 1)

    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await waiting
    await until_free(lab, "a", "c")
    assert (await lab.state("b")).waiters == ()


async def test_a_client_closed_before_the_reply_of_a_grant_leaves_no_lease_behind(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    closer = lab.actor(like=actor)
    faults.plan("try_acquire_all", 0.5)  # executed at once, answered late
    acquiring = lab.start(actor, lambda client: client.lock_all(NAMES).acquire())

    async def is_taken() -> bool:
        return bool((await lab.state("a")).holders)

    await until(is_taken, "the lock is acquired")
    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await acquiring
    for name in NAMES:
        assert (await lab.state(name)).holders == ()
    assert nothing_is_published(actor)


async def test_a_grant_after_the_client_was_closed_is_released(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    closer = lab.actor(like=actor)
    engine = actor.client._current
    is_closed = engine.runtime.event()

    async def until_closed() -> None:
        await is_closed.wait(engine.runtime.now() + 60)

    async def stay_open() -> None:
        """As a connection that is not closed at once."""

    engine.backend.close = stay_open
    faults.plan("try_acquire_all", until_closed)
    acquiring = lab.start(actor, lambda client: client.lock_all(NAMES).acquire())
    await until_true(lambda: faults.count("try_acquire_all") == 1, "the request is in flight")
    await closer(lambda client: client.close())
    is_closed.set()

    with pytest.raises(holdfast.UsageError, match="closed"):
        await acquiring
    for name in NAMES:
        assert (await lab.state(name)).holders == ()


@pytest.mark.parametrize("closed", ["the one that is waited for", "the one that is held"])
async def test_closing_one_of_two_clients_ends_the_wait(lab: Lab, second: Lab, closed: str) -> None:
    actor_a, actor_b, holder = lab.actor(), second.actor(), second.actor()
    held = await holder(lambda client: client.lock("c").acquire())
    locks = actor_a.client.lock_all(["a", "b", actor_b.client.lock("c")], timeout=60)
    waiting = lab.start(actor_a, lambda _: locks.acquire())
    await second.until_waiting("c", 1)

    closer = lab.actor(like=actor_a) if closed == "the one that is held" else second.actor(like=actor_b)
    await closer(lambda client: client.close())
    await holder(lambda _: held.release())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await waiting
    await until_free(lab)
    await until_free(second)


async def test_dropped_leases_cause_warnings_and_expire(lab: Lab) -> None:
    dropper, other = lab.actor(), lab.actor()

    with pytest.warns(ResourceWarning, match="was dropped without release") as warned:
        await dropper(acquire_and_drop if lab.runtime == "threads" else acquire_and_drop_in_a_task)
        gc.collect()

    assert sorted(str(warning.message).split("'")[1] for warning in warned) == ["a", "b"]
    assert await other(lambda client: client.lock_all(["a", "b"]).acquire(timeout=60))


def acquire_and_drop(client: holdfast.Client) -> None:
    assert client.lock_all(["a", "b"], ttl=SHORT).acquire()


async def acquire_and_drop_in_a_task(client: holdfast.AsyncClient) -> None:
    assert await client.lock_all(["a", "b"], ttl=SHORT).acquire()


async def test_a_group_is_lost_when_one_of_its_leases_was_lost_before_the_group_was_made(lab: Lab) -> None:
    actor = lab.actor()
    first = await actor(lambda client: client.lock("a").acquire())
    second = await actor(lambda client: client.lock("b").acquire())
    engine = actor.client._current
    engine.lose(second, "it was broken")

    group = (holdfast.LeaseAll if lab.runtime == "threads" else holdfast.AsyncLeaseAll)(
        [first, second], None, engine.runtime
    )

    assert first.lost
    assert await actor(lambda _: group.wait_lost(60))


async def test_a_forked_child_has_no_leases_and_its_callbacks_are_not_called(lab: Lab) -> None:
    actor = lab.actor()
    reported: list[Any] = []
    lease = await actor(lambda client: client.lock_all(NAMES, on_lost=reported.append).acquire())

    actor.client._after_fork()  # as the runtime calls it in the child

    assert lease.lost
    with pytest.raises(holdfast.LockLost, match="this process is a fork"):
        lease.check()
    with pytest.raises(holdfast.LockLost, match="this process is a fork"):
        await actor(lambda _: lease.release())
    await actor(lambda client: client.lock("z").acquire(timeout=0))  # pending callbacks would be called before this
    assert reported == []


def test_a_failed_attempt_does_not_release_a_lost_lease_before_its_deadline() -> None:
    """The body of a lost lease with a `stop_margin` has time until the deadline."""
    url = f"memory://{uuid.uuid4().hex}"
    with holdfast.Client(url) as client, holdfast.Client(url) as other:
        lease = client.lock("slow", max_hold=10.05, stop_margin=10).acquire()
        assert lease is not None
        assert lease.wait_lost(timeout=30)
        busy = other.lock("b").acquire()

        assert client.lock_all(["a", "b"]).acquire(timeout=0.05) is None

        assert other.lock("slow").acquire(timeout=0) is None
        with other.lock("a", timeout=0):
            pass
        assert busy is not None


async def test_a_release_of_a_lost_group_frees_its_locks_at_once_in_spite_of_a_stop_margin(lab: Lab) -> None:
    """The margin is time for the body, and a release shows that the body has ended."""
    actor, other = lab.actor(), lab.actor()
    options = {"ttl": 1000, "stop_margin": 500, "renew": False}
    lease = await actor(lambda client: client.lock_all(["kept", "broken"], **options).acquire())
    fence = lease.fences["broken"]
    assert await other(lambda client: client.break_lock("broken", fence))
    with pytest.raises(holdfast.LockLost):
        await actor(lambda _: lease.renew())

    with pytest.raises(holdfast.LockLost):
        await actor(lambda _: lease.release())

    assert await other(lambda client: client.lock("kept").acquire(timeout=20)) is not None
