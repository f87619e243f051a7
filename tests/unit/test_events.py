"""Hazard: events do not add up, so that a gauge of waiting calls or held leases never returns to zero."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import sys
import threading
import uuid
from typing import Any

import pytest

import holdfast
from holdfast.core.events import GROUPS_MAX, OTHER_GROUPS, Attempt, Event, pattern_of
from holdfast_lab.conformance.event_ledger import Ledger
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import DOWN, LOST, NO_REPLY, OK, REFUSED, Faults
from tests.support.processes import eventually

SHORT = 0.3


@pytest.fixture
def client() -> Any:
    with holdfast.Client(f"memory://{uuid.uuid4().hex}") as client:
        yield client


# ── subscribers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_subscriptions_of_several_threads_are_all_kept_and_end_one_by_one(client: holdfast.Client) -> None:
    """Each thread subscribes and observes the requests many times. A lost one leaves a metric without numbers."""
    each = 200
    subscriptions: list[Any] = []  # the functions that end them
    observations: list[Any] = []
    events: list[Event] = []
    operations: list[str] = []
    start = threading.Barrier(4)

    def observe(operation: str, _seconds: float, _error: str) -> None:
        operations.append(operation)

    def subscribe() -> None:
        start.wait()
        for _ in range(each):
            subscriptions.append(client.subscribe(events.append))
            observations.append(client._observe_requests(observe))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=subscribe) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    with client.lock("a"):
        pass
    assert [event.kind for event in events].count("acquired") == 4 * each
    assert operations == [*["try_acquire"] * 4 * each, *["release"] * 4 * each]

    events.clear()
    for end in subscriptions[:each]:
        end()
        end()  # a second call ends no other subscription
    with client.lock("a"):
        pass
    assert [event.kind for event in events].count("acquired") == 3 * each
    for end in subscriptions + observations:
        end()
    assert not client._events.subscribers
    assert type(client._engine.backend).__name__ == "MemoryBackend"


# ── one attempt ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_events_of_a_lease_are_in_order(client: holdfast.Client) -> None:
    ledger = Ledger(client)
    with client.lock("order:4711", ttl=20) as lease:
        lease.renew()

    eventually(ledger.is_balanced)
    assert ledger.path("order:4711") == ["acquiring", "acquired", "renewed", "released: released"]
    acquiring, acquired, _, released = ledger.events
    assert {event.attempt for event in ledger.events} == {acquiring.attempt}
    assert {(event.primitive, event.group, event.ttl) for event in ledger.events} == {("lock", "order:*", 20.0)}
    assert acquiring.fence is None
    assert acquired.fence == released.fence == lease.fence
    assert acquired.seconds is not None
    assert released.seconds is not None
    ledger.check()


async def test_each_failure_of_an_acquire_has_its_outcome(lab: Lab, faults: Faults) -> None:
    holder, actor = lab.actor(), lab.actor()
    ledger = Ledger(actor.client)
    lease = await holder(lambda client: client.lock("a").acquire())
    assert await actor(lambda client: client.lock("a").acquire(timeout=0)) is None
    assert await actor(lambda client: client.lock("a").acquire(timeout=0.01)) is None
    await holder(lambda _: lease.release())
    for outcome, error in ((DOWN, holdfast.BackendUnavailable), (REFUSED, holdfast.ConfigurationError)):
        faults.plan("try_acquire", outcome, OK)
        with pytest.raises(error):
            await actor(lambda client: client.lock("a").acquire())
    faults.plan("try_acquire", LOST, LOST, OK)
    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda client: client.lock("a").acquire())
    lease_of_actor = await actor(lambda client: client.lock("a").acquire())
    assert await actor(lambda client: client.lock("a").acquire(timeout=0)) is None
    with pytest.raises(holdfast.WouldDeadlock):
        await actor(lambda client: client.lock("a").acquire())
    await actor(lambda _: lease_of_actor.release())

    ledger.check()
    assert [event.outcome for event in ledger.events if event.kind == "not acquired"] == [
        "busy",
        "timeout",
        "unavailable",
        "refused",
        "unknown",
        "busy",
        "refused",
    ]
    assert ledger.kinds["queued"] == 1
    assert all("/" in (event.reason or "") for event in ledger.events if event.kind == "queued")


async def test_each_end_of_a_lease_has_its_outcome(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    ledger = Ledger(actor.client)

    expired = await actor(lambda client: client.lock("expired", ttl=SHORT, renew=False).acquire())
    bounded = await actor(lambda client: client.lock("bounded", max_hold=SHORT).acquire())
    broken = await actor(lambda client: client.lock("broken", ttl=SHORT).acquire())
    assert await actor(lambda client: client.break_lock("broken", broken.fence))
    unanswered = await actor(lambda client: client.lock("unanswered").acquire())
    faults.plan("release", NO_REPLY, OK)
    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda _: unanswered.release())
    await actor(lambda _: unanswered.release())  # the second time: no second event
    await actor(lambda client: client.lock("closed").acquire())
    await until(lambda: asyncio.sleep(0, ledger.kinds["lost"] == 3), "three losses")
    await lab.aclose()

    ledger.check()
    assert not expired.held
    assert not bounded.held
    assert {name: ledger.path(name)[-1] for name in ("expired", "bounded", "broken", "unanswered", "closed")} == {
        "expired": "lost: expired",
        "bounded": "lost: max_hold",
        "broken": "lost: gone",
        "unanswered": "released: unanswered",
        "closed": "released: closed",
    }


def test_a_lease_that_no_variable_ever_had_is_dropped_at_once(client: holdfast.Client) -> None:
    """Otherwise it is renewed until the next run of the garbage collector, which an idle program may never reach."""
    ledger = Ledger(client)
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="dropped"):
            client.lock("a", ttl=SHORT).acquire()
    finally:
        gc.enable()
    eventually(ledger.is_balanced)
    assert ledger.path("a") == ["acquiring", "acquired", "released: dropped"]


def test_a_dropped_lease_has_an_end(client: holdfast.Client) -> None:
    ledger = Ledger(client)
    lock = client.lock("a", ttl=SHORT)
    lease = lock.acquire()
    with pytest.warns(ResourceWarning, match="dropped"):
        del lease, lock
        gc.collect()
    eventually(ledger.is_balanced)
    ledger.check()
    assert ledger.path("a") == ["acquiring", "acquired", "released: dropped"]


def test_a_subscriber_that_begins_later_gets_the_end_of_a_lease(client: holdfast.Client) -> None:
    lease = client.lock("a").acquire()
    events: list[Event] = []
    client.subscribe(events.append)
    assert lease is not None
    lease.release()
    assert [(event.kind, event.outcome) for event in events] == [("released", "released")]


def test_a_renewal_without_an_answer_is_an_event(faulty_url: str, faults: Faults) -> None:
    with holdfast.Client(faulty_url) as client:
        ledger = Ledger(client)
        with client.lock("a", ttl=20) as lease:
            faults.plan("renew", DOWN, OK)
            with contextlib.suppress(holdfast.BackendError):
                lease.renew()
            eventually(lambda: ledger.kinds["renewal failed"] == 1)
    ledger.check()
    failed = next(event for event in ledger.events if event.kind == "renewal failed")
    assert failed.outcome == "BackendUnavailable"
    assert "planned: down" in str(failed.reason)


def test_a_loss_before_acquired_was_delivered_comes_after_it() -> None:
    """The keeper's thread may be faster than the caller's."""
    fields = Event("acquiring", "a", attempt=1)
    attempt = Attempt(fields, 0.0)
    lost = fields._replace(kind="lost", outcome="gone", fence=7)
    acquired = fields._replace(kind="acquired", fence=7)
    assert attempt.next_events(lost) == []
    assert attempt.next_events(acquired) == [acquired, lost]
    assert attempt.next_events(fields._replace(kind="released", outcome="released")) == []


# ── several locks, decorators, elections ─────────────────────────────────────────────────────────────────────────────


async def test_lock_all_that_fails_ends_the_leases_that_it_had(lab: Lab, faults: Faults) -> None:
    holder, actor = lab.actor(), lab.actor()
    ledger = Ledger(actor.client)
    held = await holder(lambda client: client.lock("b").acquire())
    names = list("abc")
    for seconds in (0, 0.01):
        assert await actor(lambda client, timeout=seconds: client.lock_all(names).acquire(timeout=timeout)) is None
    faults.plan("try_acquire_all", DOWN, OK)
    with pytest.raises(holdfast.BackendUnavailable):
        await actor(lambda client: client.lock_all(names).acquire(timeout=0))
    await holder(lambda _: held.release())
    lease = await actor(lambda client: client.lock_all(names).acquire(timeout=20))
    with pytest.raises(holdfast.WouldDeadlock):
        await actor(lambda client: client.lock_all(["c", "d"]).acquire(timeout=1))
    await actor(lambda _: lease.release())

    ledger.check()
    assert ledger.path("b") == [
        *("acquiring", "not acquired: busy"),
        *("acquiring", "queued", "not acquired: timeout"),
        *("acquiring", "acquired", "released: released"),
    ]
    undone = ["acquiring", "acquired", "released: undone"]
    failed = ["acquiring", "not acquired: unavailable"]
    assert ledger.path("a") == [*undone, *undone, *failed, "acquiring", "acquired", "released: released"]
    assert ledger.outcomes["not acquired: refused"] == 1
    assert {event.primitive for event in ledger.events} == {"lock_all"}


async def test_locks_of_lock_all_are_lost_together(lab: Lab) -> None:
    actor = lab.actor()
    ledger = Ledger(actor.client)
    lease = await actor(lambda client: client.lock_all(["a", "b"], ttl=SHORT).acquire())
    assert await actor(lambda client: client.break_lock("a", lease.fences["a"]))
    await until(lambda: asyncio.sleep(0, ledger.is_balanced()), "both are lost")
    ledger.check()
    assert ledger.path("a")[-1] == "lost: gone"
    assert ledger.path("b")[-1] == "lost: together"


def test_skipped_runs_are_events(client: holdfast.Client) -> None:
    ledger = Ledger(client)

    @client.locked("charge:{invoice}", busy="skip")
    def charge(invoice: int) -> None:
        if invoice == 7:
            other = threading.Thread(target=charge, args=(7,))
            other.start()
            other.join()

    @client.once_per("52w", name="report")
    def report() -> None: ...

    charge(7)
    report()
    report()

    ledger.check()
    assert ledger.outcomes["skipped: busy"] == ledger.outcomes["skipped: done"] == 1
    assert {(event.primitive, event.group) for event in ledger.events} == {
        ("locked", "charge:{invoice}"),
        ("once_per", "report"),
    }


def test_events_name_the_primitive(client: holdfast.Client) -> None:
    ledger = Ledger(client)
    for lock in (
        client.rwlock("a").read(),
        client.rwlock("a").write(),
        client.semaphore("s", 2),
        client.election("e"),
        client.lock_all([client.lock("b")]),
    ):
        with lock:
            pass
    ledger.check()
    acquired = [event.primitive for event in ledger.events if event.kind == "acquired"]
    assert acquired == ["rwlock.read", "rwlock.write", "semaphore", "election", "lock_all"]


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nightly-report", "nightly-report"),
        ("order:4711", "order:*"),
        ("user_9f86d081884c/cache2", "user_*/cache*"),
        ("job-3f2504e0-4f89-11d3-9a0c-0305e82c3301", "job-*"),
        ("facade", "facade"),
        ("deadbeef", "*"),
        ("größe-7", "größe-*"),
    ],
)
def test_the_group_of_a_name_is_its_pattern(name: str, group: str) -> None:
    assert pattern_of(name) == group


def test_a_given_group_is_used_and_the_number_of_groups_is_limited(client: holdfast.Client) -> None:
    groups: list[str] = []
    client.subscribe(lambda event: groups.append(event.group) if event.kind == "acquired" else None)
    with client.lock("order:1", group="orders"):
        pass
    for number in range(GROUPS_MAX + 5):
        letters = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        with client.lock(letters):
            pass
    assert groups[0] == "orders"
    assert groups[-5:] == [OTHER_GROUPS] * 5
    assert len(set(groups)) == GROUPS_MAX + 1


def test_a_function_that_makes_the_name_gives_no_group(client: holdfast.Client) -> None:
    groups: set[str] = set()
    client.subscribe(lambda event: groups.add(event.group))

    @client.locked(name_of=lambda order: f"order-{order}")
    def ship(order: str) -> None: ...

    ship("x")
    assert groups == {f"{test_a_function_that_makes_the_name_gives_no_group.__qualname__}.<locals>.ship"}


# ── stats ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stats_are_read_from_the_state(lab: Lab, faults: Faults) -> None:
    holder, actor, other = lab.actor(), lab.actor(), lab.actor()
    assert actor.client.stats() == (0, 0, 0.0, 0.0, 0, {})
    held = await holder(lambda client: client.lock("job:1").acquire())
    lease_of_actor = await actor(lambda client: client.election("leader", group="leaders").acquire())
    same_client = lab.actor(like=actor)
    waiting = lab.start(same_client, lambda client: client.lock("job:1").acquire(timeout=60))
    await until(lambda: asyncio.sleep(0, actor.client.stats().waiting == 1), "it waits")

    stats = actor.client.stats()
    assert (stats.held, stats.waiting) == (1, 1)
    assert stats.groups["leaders"].leading == stats.groups["leaders"].held == 1
    assert stats.groups["job:*"].waiting == 1
    assert stats.oldest_wait == stats.groups["job:*"].oldest_wait > 0
    assert stats.oldest_hold == stats.groups["leaders"].oldest_hold > 0

    faults.plan("release", DOWN)
    with pytest.raises(holdfast.BackendUnavailable):
        await actor(lambda _: lease_of_actor.release())
    assert actor.client.stats().pending_releases == 1
    faults.plan("release", OK)
    await holder(lambda _: held.release())
    lease = await waiting
    await same_client(lambda _: lease.release())
    await until(lambda: asyncio.sleep(0, actor.client.stats().pending_releases == 0), "the keeper has released it")
    assert actor.client.stats()[:5] == (0, 0, 0.0, 0.0, 0)
    assert other.client.stats().held == 0


def test_a_forked_child_begins_with_empty_stats_and_its_own_events(client: holdfast.Client) -> None:
    ledger = Ledger(client)
    lease = client.lock("a").acquire()
    child = os.fork()
    if child == 0:
        try:
            ledger.open.clear()
            assert client.stats().held == 0
            with client.lock("b"):
                assert client.stats().held == 1
            assert not ledger.open
            assert not ledger.problems
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.stats().held == 1
    assert lease is not None
    lease.release()
    ledger.check()


# ── random outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────

OUTCOMES = [OK] * 12 + [DOWN, LOST, NO_REPLY]


def random_faults(faults: Faults, rng: random.Random) -> None:
    for verb in ("try_acquire", "try_acquire_all", "release", "renew"):
        faults.plan(verb, *(rng.choice(OUTCOMES) for _ in range(3000)), OK)


async def test_1000_attempts_of_tasks_with_random_outcomes_add_up(faulty_url: str, faults: Faults) -> None:
    """It makes more attempts until each outcome has happened: on a busy machine some are rare."""
    rng = random.Random(7)  # noqa: S311
    expected = {f"not acquired: {outcome}" for outcome in ("busy", "timeout", "cancelled", "unavailable", "unknown")}
    expected |= {f"released: {outcome}" for outcome in ("released", "unanswered", "undone")}
    async with holdfast.AsyncClient(faulty_url) as client:
        ledger = Ledger(client)

        async def attempt(number: int) -> None:
            name = f"lock:{rng.randrange(5)}"
            options: Any = {"timeout": rng.choice([0, 0.005, 0.05]), "ttl": 20}
            lock = client.lock_all([name, "lock:9"], **options) if number % 7 == 0 else client.lock(name, **options)
            with contextlib.suppress(holdfast.HoldfastError):
                async with lock:
                    await asyncio.sleep(rng.random() * 0.002)

        tasks: list[asyncio.Task[None]] = []
        for number in itertools.count():
            if number % 1000 == 0:
                if expected <= ledger.outcomes.keys():
                    break
                random_faults(faults, rng)
            tasks.append(asyncio.create_task(attempt(number)))
            if number % 3 == 0:
                rng.choice(tasks).cancel()
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks, return_exceptions=True)
        for verb in ("try_acquire", "try_acquire_all", "release", "renew"):
            faults.plan(verb, OK)
        await until(lambda: asyncio.sleep(0, ledger.is_balanced()), "all attempts have ended")
        await until(lambda: asyncio.sleep(0, client.stats()[:5] == (0, 0, 0.0, 0.0, 0)), "nothing is pending")
    ledger.check()


def test_1000_attempts_of_threads_with_random_outcomes_add_up(faulty_url: str, faults: Faults) -> None:
    random_faults(faults, random.Random(8))  # noqa: S311
    with holdfast.Client(faulty_url) as client:
        ledger = Ledger(client)

        def work(seed: int) -> None:
            rng = random.Random(seed)  # noqa: S311
            for number in range(125):
                name = f"lock:{rng.randrange(5)}"
                options: Any = {"timeout": rng.choice([0, 0.005, 0.02]), "ttl": 20}
                lock = client.lock_all([name, "lock:9"], **options) if number % 7 == 0 else client.lock(name, **options)
                with contextlib.suppress(holdfast.HoldfastError), lock:
                    pass

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for verb in ("try_acquire", "try_acquire_all", "release", "renew"):
            faults.plan(verb, OK)
        eventually(ledger.is_balanced)
        eventually(lambda: client.stats()[:5] == (0, 0, 0.0, 0.0, 0))
    ledger.check()
