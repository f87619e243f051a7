"""Several locks as one, at their edges: faults at each step, two stores, losses, a client that closes, dropped leases.

Hazards: some of the locks stay taken, a lease is half released, a loss is reported twice or not at all.
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
    """Another kind of store, in the same shell."""
    return Lab(f"sqlite://{tmp_path}/locks.db", lab.runtime)


async def free(lab: Lab, *names: str) -> None:
    """Wait until none of the locks has a holder or a waiter."""

    async def is_free() -> bool:
        infos = [await lab.state(name) for name in names or NAMES]
        return not any(info.holders or info.waiters for info in infos)

    await until(is_free, f"{names or NAMES} free again")


def nothing_is_published(actor: Actor) -> bool:
    engine = actor.client._current
    return not engine._leases and not engine._acquiring


async def soon(condition: Callable[[], bool], description: str) -> None:
    async def is_so() -> bool:
        return condition()

    await until(is_so, description)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fate", "error"),
    [
        (DOWN, holdfast.BackendUnavailable),
        (REFUSED, holdfast.ConfigurationError),
        (TOO_FEW, holdfast.QuorumError),
        (BUG, ZeroDivisionError),
    ],
)
async def test_an_unreachable_store_raises_at_once_and_nothing_is_kept(
    lab: Lab, faults: Faults, fate: str, error: type[Exception]
) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", fate)

    with pytest.raises(error):
        await actor(lambda client: client.lock_all(NAMES).acquire())

    assert faults.count("try_acquire_all") == 1
    assert nothing_is_published(actor)
    await free(lab)


@pytest.mark.parametrize("fate", [LOST, NO_REPLY])
async def test_a_step_without_an_answer_is_gone_on_from(lab: Lab, faults: Faults, fate: str) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", fate, OK)

    lease = await actor(lambda client: client.lock_all(NAMES, timeout=60).acquire())

    assert lease.held
    for name in NAMES:
        assert [holder.fence for holder in (await lab.state(name)).holders] == [lease.fences[name]]
    await actor(lambda _: lease.release())
    await free(lab)
    assert nothing_is_published(actor)


@pytest.mark.parametrize("fate", [LOST, NO_REPLY, 0.3])
async def test_a_request_without_an_answer_raises_when_the_call_does_not_wait(
    lab: Lab, faults: Faults, fate: Any
) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", fate)

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda client: client.lock_all(NAMES, ttl=0.2).acquire(timeout=0))

    assert nothing_is_published(actor)
    await free(lab)


async def test_an_answer_after_the_deadline_is_not_a_grant(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire_all", 0.8, OK)

    lease = await actor(lambda client: client.lock_all(NAMES, ttl=SHORT, timeout=60).acquire())

    lease.check()
    for name in NAMES:
        assert [holder.fence for holder in (await lab.state(name)).holders] == [lease.fences[name]]


@pytest.mark.parametrize("fate", [DOWN, LOST, NO_REPLY, BUG])
async def test_an_error_at_a_later_lock_releases_the_earlier_ones(lab: Lab, faults: Faults, fate: str) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("b").acquire())
    taking = lab.start(actor, lambda client: client.lock_all(NAMES, timeout=60).acquire())
    await lab.until_waiting("b", 1)  # "a" is taken by now

    faults.plan("try_acquire", fate)
    faults.plan("wait", 0, OK)
    await holder(lambda _: held.release())
    if fate is BUG:
        with pytest.raises(ZeroDivisionError):
            await taking
    else:  # an outage during a wait is waited out
        await soon(lambda: faults.count("try_acquire") > 4, "some attempts")
        faults.plan("try_acquire", OK)
        assert (await taking).held
        faults.plan("release", OK)
        await actor(lambda client: client.close())

    await free(lab)


@pytest.mark.parametrize("fate", [DOWN, LOST, NO_REPLY])
async def test_a_timeout_whose_withdrawal_gets_no_answer_is_still_a_timeout(
    lab: Lab, faults: Faults, fate: str
) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("c").acquire())
    faults.plan("release", fate, fate, OK)

    assert await actor(lambda client: client.lock_all(NAMES).acquire(timeout=0.1)) is None

    assert nothing_is_published(actor)
    held.check()
    await free(lab, "a", "b")


@pytest.mark.parametrize("fate", [DOWN, LOST, NO_REPLY, NOT_ALL])
async def test_a_release_without_an_answer_can_be_repeated(lab: Lab, faults: Faults, fate: str) -> None:
    actor = lab.actor()
    locks = actor.client.lock_all(NAMES)
    lease = await actor(lambda _: locks.acquire())
    faults.plan("release", fate, OK)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: locks.release())
    assert not lease.held
    assert not lease.lost
    await actor(lambda _: locks.release())

    with pytest.raises(holdfast.NotHeld):
        await actor(lambda _: lease.release())
    await free(lab)


async def test_a_body_is_not_failed_by_a_release_without_an_answer(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("release", LOST, OK)

    assert await actor.body(lambda client: client.lock_all(NAMES), lambda lease: lease.fences)

    await free(lab)


async def test_a_lease_lost_during_the_wait_for_the_next_lock_is_acquired_again(lab: Lab, faults: Faults) -> None:
    holder, actor = lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("b").acquire())
    taking = lab.start(actor, lambda client: client.lock_all(NAMES, timeout=60).acquire())
    await lab.until_waiting("b", 1)
    first = (await lab.state("a")).holders[0].fence
    assert first is not None

    assert await holder(lambda client: client.break_lock("a", first))
    await actor_hears_of_it(actor)
    await holder(lambda _: held.release())

    lease = await taking
    lease.check()
    assert lease.fences["a"] > first


async def actor_hears_of_it(actor: Actor) -> None:
    """The keeper would ask after a third of the ttl; it is asked now."""
    engine = actor.client._current
    (ref,) = engine._leases.values()
    engine.lose(ref(), "it was broken")


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_lease_has_its_events(lab: Lab) -> None:
    actor = lab.actor()
    events: list[tuple[str, str]] = []
    actor.client.subscribe(lambda event: events.append((event.kind, event.lock)))

    await actor.body(lambda client: client.lock_all(["b", "a"]), lambda _: None)

    taken = [(kind, name) for name in "ab" for kind in ("acquiring", "acquired")]
    assert events == [*taken, ("released", "a"), ("released", "b")]


# ── releases ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_two_concurrent_releases_one_succeeds_and_no_loss_is_reported(lab: Lab, faults: Faults) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    reported: list[Any] = []
    lease = await first(lambda client: client.lock_all(NAMES, on_lost=reported.append).acquire())
    faults.plan("release", 0.5, OK)

    releasing = lab.start(first, lambda _: lease.release())
    await soon(lambda: faults.count("release") == 1, "the first release is on its way")
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
    assert list(locks._kept.values()) == [[lease]]  # what is over is kept no longer than that


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

    await free(lab)


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
    await free(lab)
    await free(second)


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_with_one_store_s_lock_busy_nothing_is_kept_on_the_other(lab: Lab, second: Lab, timeout: float) -> None:
    actor_a, actor_b, holder = lab.actor(), second.actor(), second.actor()
    held = await holder(lambda client: client.lock("c").acquire())

    assert await actor_a(lambda _: across(actor_a, actor_b).acquire(timeout=timeout)) is None

    await free(lab)
    await free(second, "b")
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
    await free(lab)
    await soon(lambda: bool(reported), "the callback was called")
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
    first, last = sorted(lease._leases, key=lambda hold: hold._engine._serial)
    assert (first.name, last.name) == ("a", "b")
    faults.plan("release", 0.5, OK)

    with pytest.raises(holdfast.LockLost, match="'b'"):
        await actor_a(lambda _: lease.release())

    assert lease.lost
    await soon(lambda: len(lost) == 1, "the event")
    await free(lab)
    await free(second)


async def test_one_store_that_is_down_leaves_nothing_on_the_other(lab: Lab, second: Lab, faults: Faults) -> None:
    actor_a, actor_b = lab.actor(), second.actor()
    faults.plan("try_acquire_all", DOWN)
    faults.plan("try_acquire", DOWN)
    locks = actor_a.client.lock_all([actor_b.client.lock("a"), actor_b.client.lock("b"), "c"])

    for timeout in (0, 60):
        with pytest.raises(holdfast.BackendUnavailable):
            await actor_a(lambda _, timeout=timeout: locks.acquire(timeout=timeout))
        await free(second)

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

    await free(second)
    assert not lease.held
    assert not lease.lost
    faults.plan("release", OK)
    await actor_a(lambda _: locks.release())
    await free(lab)


# ── asyncio: the body ────────────────────────────────────────────────────────────────────────────────────────────────


class Rig:
    def __init__(self, tmp_path: Path) -> None:
        self.client = holdfast.AsyncClient("memory://")
        self.other = holdfast.AsyncClient(f"sqlite://{tmp_path}/locks.db")

    def locks(self, **options: Any) -> holdfast.AsyncLockAll:
        return self.client.lock_all(["a", self.other.lock("b", ttl=0.1, renew=False)], **options)

    async def aclose(self) -> None:
        await self.client.close()
        await self.other.close()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_the_loss_of_one_cancels_the_body(rig: Rig) -> None:
    with pytest.raises(holdfast.LockLost, match=r"'b'.*and with it a") as caught:
        async with rig.locks():
            await asyncio.sleep(60)

    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert current_task().cancelling() == 0
    await asyncio.sleep(0)  # nothing is left to be thrown here
    async with rig.client.lock("a", timeout=30):
        pass


async def test_on_lost_event_leaves_the_body_alone(rig: Rig) -> None:
    finished = False

    with pytest.raises(holdfast.LockLost):
        async with rig.locks(on_lost="event") as lease:
            assert await lease.wait_lost()
            await asyncio.sleep(0.01)
            finished = True

    assert finished


async def test_the_exception_of_a_body_is_raised_instead_of_the_loss(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async with rig.locks():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    assert "'b'" in caught.value.__notes__[0]
    assert current_task().cancelling() == 0


async def test_a_body_that_swallows_the_cancellation_still_ends_with_the_loss(rig: Rig) -> None:
    with pytest.raises(holdfast.LockLost):
        async with rig.locks():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    assert current_task().cancelling() == 0


async def test_a_cancellation_from_elsewhere_wins(rig: Rig) -> None:
    async def work() -> None:
        async with rig.locks():
            try:
                await asyncio.sleep(60)
            finally:
                current_task().cancel()  # another thread, at the same moment

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task

    assert task.cancelled()


async def test_leases_can_be_the_body_s_own_context(rig: Rig) -> None:
    lease = await rig.locks().acquire()
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
    await free(lab, "a", "c")
    assert (await lab.state("b")).waiters == ()


async def test_a_client_closed_before_the_reply_of_a_grant_leaves_no_lease_behind(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    closer = lab.actor(like=actor)
    faults.plan("try_acquire_all", 0.5)  # done at once, answered late
    taking = lab.start(actor, lambda client: client.lock_all(NAMES).acquire())

    async def is_taken() -> bool:
        return bool((await lab.state("a")).holders)

    await until(is_taken, "it is taken")
    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await taking
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
        """As a server whose line is not cut at once."""

    engine.backend.close = stay_open
    faults.plan("try_acquire_all", until_closed)
    taking = lab.start(actor, lambda client: client.lock_all(NAMES).acquire())
    await soon(lambda: faults.count("try_acquire_all") == 1, "it is on its way")
    await closer(lambda client: client.close())
    is_closed.set()

    with pytest.raises(holdfast.UsageError, match="closed"):
        await taking
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
    await free(lab)
    await free(second)


async def test_leases_that_are_dropped_give_a_warning_and_run_out(lab: Lab) -> None:
    dropper, other = lab.actor(), lab.actor()

    with pytest.warns(ResourceWarning, match="was dropped without release") as warned:
        await dropper(take_and_drop if lab.runtime == "threads" else take_and_drop_in_a_task)
        gc.collect()

    assert sorted(str(warning.message).split("'")[1] for warning in warned) == ["a", "b"]
    assert await other(lambda client: client.lock_all(["a", "b"]).acquire(timeout=60))


def take_and_drop(client: holdfast.Client) -> None:
    assert client.lock_all(["a", "b"], ttl=SHORT).acquire()


async def take_and_drop_in_a_task(client: holdfast.AsyncClient) -> None:
    assert await client.lock_all(["a", "b"], ttl=SHORT).acquire()


async def test_a_lease_that_was_lost_before_all_were_one_is_the_loss_of_all(lab: Lab) -> None:
    actor = lab.actor()
    first = await actor(lambda client: client.lock("a").acquire())
    second = await actor(lambda client: client.lock("b").acquire())
    engine = actor.client._current
    engine.lose(second, "it was broken")

    made = (holdfast.LeaseAll if lab.runtime == "threads" else holdfast.AsyncLeaseAll)(
        [first, second], None, engine.runtime
    )

    assert first.lost
    assert await actor(lambda _: made.wait_lost(60))


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
    await actor(lambda client: client.lock("z").acquire(timeout=0))  # whatever was to be called is called before this
    assert reported == []


def test_a_failed_attempt_does_not_release_a_lost_lease_before_its_deadline() -> None:
    """The body of a lost lease with a `stop_margin` has time until then."""
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


async def test_a_released_group_that_was_lost_leaves_its_locks_at_once_in_spite_of_a_stop_margin(lab: Lab) -> None:
    """The margin is time for the body, and a release says that the body has ended."""
    actor, other = lab.actor(), lab.actor()
    options = {"ttl": 1000, "stop_margin": 500, "renew": False}
    lease = await actor(lambda client: client.lock_all(["kept", "taken"], **options).acquire())
    fence = lease.fences["taken"]
    assert await other(lambda client: client.break_lock("taken", fence))
    with pytest.raises(holdfast.LockLost):
        await actor(lambda _: lease.renew())

    with pytest.raises(holdfast.LockLost):
        await actor(lambda _: lease.release())

    assert await other(lambda client: client.lock("kept").acquire(timeout=20)) is not None
