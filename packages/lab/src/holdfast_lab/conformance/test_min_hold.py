"""min_hold: a lock that is released early stays taken until that time is over, whatever happens to its holder."""

from __future__ import annotations

import time
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Lab
from holdfast_lab.conformance.processes import WorkerPool

HOLD = 1.0  # seconds


pytestmark = pytest.mark.needs(Primitive.MIN_HOLD)


async def test_a_release_before_the_time_keeps_others_out_until_it_is_over(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    begun = time.monotonic()
    lease = await holder(lambda client: client.lock("a", min_hold=f"{HOLD}s", ttl=20).acquire())
    await holder(lambda _: lease.release())

    assert not lease.held
    assert not lease.lost
    with pytest.raises(holdfast.NotHeld):
        await holder(lambda _: lease.release())
    successor = await other(lambda client: client.lock("a").acquire(timeout=60))

    assert time.monotonic() >= begun + HOLD
    assert successor.fence > lease.fence


async def test_a_release_after_the_time_frees_the_lock_at_once(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", min_hold="100ms", ttl=20).acquire())

    assert await holder(lambda _: lease.wait_lost(0.2)) is False
    await holder(lambda _: lease.release())

    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_the_holder_is_shown_until_the_time_is_over(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", min_hold=40, ttl=50).acquire())
    await holder(lambda _: lease.release())

    (shown,) = (await lab.state("a")).holders

    assert shown.fence == lease.fence
    assert 20 < shown.remaining <= 47  # memcached keeps an item for some seconds longer


async def test_the_same_thread_or_task_waits_too(lab: Lab) -> None:
    holder = lab.actor()
    lock = holder.client.lock("a", min_hold=HOLD, ttl=20, reentrant=True)
    begun = time.monotonic()
    first = await holder(lambda _: lock.acquire())
    await holder(lambda _: first.release())

    assert await holder(lambda _: lock.acquire(timeout=0)) is None
    second = await holder(lambda _: lock.acquire(timeout=60))

    assert time.monotonic() >= begun + HOLD
    assert second.fence > first.fence


async def test_closing_the_client_does_not_free_the_lock_early(lab: Lab) -> None:
    holder, releasing, other = lab.actor(), lab.actor(), lab.actor()
    begun = time.monotonic()
    held = await holder(lambda client: client.lock("held", min_hold=HOLD, ttl=20).acquire())
    await releasing(lambda client: client.lock("released", min_hold=HOLD, ttl=20).acquire())

    await holder(lambda client: client.close())
    await releasing(lambda client: client.close())

    assert not held.held
    for name in ("held", "released"):
        assert await other(lambda client, name=name: client.lock(name).acquire(timeout=60))
        assert time.monotonic() >= begun + HOLD


async def test_events_of_a_kept_lock_are_balanced(lab: Lab) -> None:
    holder = lab.actor()
    events: list[tuple[str, str]] = []
    holder.client.subscribe(lambda event: events.append((event.kind, event.outcome)))

    lease = await holder(lambda client: client.lock("a", min_hold=20).acquire())
    await holder(lambda _: lease.release())
    await holder(lambda client: client.close())

    assert [kind for kind, _ in events] == ["acquiring", "acquired", "released"]
    assert events[-1][1] == "released"


async def test_all_locks_of_a_group_are_kept(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    begun = time.monotonic()
    group = await holder(lambda client: client.lock_all(["a", "b"], min_hold=HOLD, ttl=20).acquire())
    await holder(lambda _: group.release())

    for name in ("a", "b"):
        assert await other(lambda client, name=name: client.lock(name).acquire(timeout=60))
        assert time.monotonic() >= begun + HOLD


async def test_a_group_that_is_not_acquired_keeps_nothing(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("b").acquire())

    assert await other(lambda client: client.lock_all(["a", "b"], min_hold=20, ttl=20).acquire(timeout=0)) is None

    assert await holder(lambda client: client.lock("a").acquire(timeout=30))


@pytest.mark.needs(Primitive.RWLOCK)
async def test_a_released_reader_keeps_writers_out_and_no_reader(lab: Lab) -> None:
    reader, other = lab.actor(), lab.actor()
    begun = time.monotonic()
    lease = await reader(lambda client: client.rwlock("a", min_hold=HOLD, ttl=20).read().acquire())
    await reader(lambda _: lease.release())

    shared = await other(lambda client: client.rwlock("a").read().acquire(timeout=0))
    await other(lambda _: shared.release())
    await other(lambda client: client.rwlock("a").write().acquire(timeout=60))

    assert time.monotonic() >= begun + HOLD


@pytest.mark.needs(Primitive.SEMAPHORE)
async def test_a_released_permit_stays_taken(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    begun = time.monotonic()
    for _ in range(2):
        permit = await holder(lambda client: client.semaphore("a", 2, min_hold=HOLD, ttl=20).acquire(timeout=0))
        await holder(lambda _, permit=permit: permit.release())

    assert await other(lambda client: client.semaphore("a", 2).acquire(timeout=60))
    assert time.monotonic() >= begun + HOLD


@pytest.mark.needs(Primitive.RENEW_TTL)
async def test_another_ttl_is_never_shorter_than_the_minimum_hold(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", min_hold=40, ttl=10).acquire())
    assert lease.ttl == 40

    await holder(lambda _: lease.renew(ttl=5))

    assert lease.ttl == 40
    assert lease.remaining > 20


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_process_that_ends_does_not_free_the_lock_early(how: str, store_url: str, pool: WorkerPool) -> None:
    if store_url.startswith("memory"):
        pytest.skip("the memory store ends with the process that this test kills")
    worker = pool.start(store_url)
    begun = time.monotonic()
    fence = worker.call("acquire", lock="a", ttl=3, min_hold=3)["fence"]
    if how == "killed":
        worker.kill()
    else:
        worker.release()

    with holdfast.Client(store_url) as client:
        successor = client.lock("a").acquire(timeout=60)
        assert successor is not None
        assert time.monotonic() >= begun + 3
        assert successor.fence > fence
        successor.release()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owner": "job"}, "min_hold excludes owner"),
        ({"detect_deadlocks": True}, "min_hold excludes detect_deadlocks"),
        ({"max_hold": 5}, "longer than max_hold"),
        ({"min_hold": -1}, "min_hold must be between"),
        ({"min_hold": "soon"}, "min_hold must be"),
    ],
)
def test_a_min_hold_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with holdfast.Client("memory://") as client, pytest.raises(holdfast.ConfigurationError, match=message):
        client.lock("a", **{"min_hold": 10, **options})


def test_an_election_takes_no_min_hold() -> None:
    with holdfast.Client("memory://") as client, pytest.raises(holdfast.ConfigurationError, match="takes no min_hold"):
        client.election("a", min_hold=10)
