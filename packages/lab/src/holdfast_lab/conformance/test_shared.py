"""Readers, writers and permits: one rule for all, and one namespace with the mutex."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Lab

pytestmark = [
    pytest.mark.needs(Primitive.RWLOCK, Primitive.SEMAPHORE),  # for the others see test_unsupported.py
    pytest.mark.on_every_method,
]


async def test_readers_share_and_keep_the_writer_out(lab: Lab) -> None:
    readers = [lab.actor() for _ in range(3)]
    writer = lab.actor()

    leases = [await reader(lambda client: client.rwlock("a").read().acquire(timeout=0)) for reader in readers]
    assert all(leases)
    assert await writer(lambda client: client.rwlock("a").write().acquire(timeout=0)) is None

    for reader, lease in zip(readers, leases, strict=True):
        await reader(lambda _, held=lease: held.release())
    assert await writer(lambda client: client.rwlock("a").write().acquire(timeout=0))
    assert await readers[0](lambda client: client.rwlock("a").read().acquire(timeout=0)) is None


@pytest.mark.counts_waiters
async def test_a_waiting_writer_is_not_overtaken_by_readers(lab: Lab) -> None:
    first, writer, late = lab.actor(), lab.actor(), lab.actor()
    reading = await first(lambda client: client.rwlock("a").read().acquire())
    writing = lab.start(writer, lambda client: client.rwlock("a").write().acquire())
    await lab.until_waiting("a", 1)

    assert await late(lambda client: client.rwlock("a").read().acquire(timeout=0)) is None
    waiting = lab.start(late, lambda client: client.rwlock("a").read().acquire())
    await lab.until_waiting("a", 2)
    await first(lambda _: reading.release())
    written = await writing
    assert not waiting.done()
    await writer(lambda _: written.release())

    assert (await waiting).fence > written.fence > reading.fence


@pytest.mark.counts_waiters
async def test_readers_behind_a_writer_are_granted_together(lab: Lab) -> None:
    writer = lab.actor()
    readers = [lab.actor() for _ in range(4)]
    writing = await writer(lambda client: client.rwlock("a").write().acquire())
    waiting = []
    for number, reader in enumerate(readers):
        waiting.append(lab.start(reader, lambda client: client.rwlock("a").read().acquire()))
        await lab.until_waiting("a", number + 1)

    await writer(lambda _: writing.release())
    leases = await asyncio.gather(*waiting)

    assert all(lease.held for lease in leases)
    assert len((await lab.state("a")).holders) == 4


@pytest.mark.counts_waiters
async def test_a_waiting_reader_is_granted_when_the_writer_before_it_gives_up(lab: Lab) -> None:
    first, writer, late = lab.actor(), lab.actor(), lab.actor()
    await first(lambda client: client.rwlock("a").read().acquire())
    writing = lab.start(writer, lambda client: client.rwlock("a").write().acquire(timeout=1))
    await lab.until_waiting("a", 1)
    waiting = lab.start(late, lambda client: client.rwlock("a").read().acquire(timeout=60))
    await lab.until_waiting("a", 2)

    assert await writing is None

    assert await waiting


async def test_a_second_read_is_a_re_entry(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()
    first = await actor(lambda client: client.rwlock("a").read().acquire())
    writing = lab.start(other, lambda client: client.rwlock("a").write().acquire(timeout=60))

    again = await actor(lambda client: client.rwlock("a").read().acquire())  # the waiting writer does not block it
    assert again is first
    await actor(lambda _: again.release())
    assert first.held
    await actor(lambda _: first.release())
    assert (await writing).fence > first.fence


async def test_a_reader_cannot_become_the_writer(lab: Lab) -> None:
    actor = lab.actor()
    rwlock = actor.client.rwlock("a", reentrant=True)
    await actor(lambda _: rwlock.read().acquire())

    with pytest.raises(holdfast.WouldDeadlock, match="reader cannot become the writer"):
        await actor(lambda _: rwlock.write().acquire())

    for seconds in (0, 0.05):
        assert await actor(lambda _, timeout=seconds: rwlock.write().acquire(timeout=timeout)) is None


async def test_a_writer_may_read_again_if_it_is_reentrant(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()
    rwlock = actor.client.rwlock("a", reentrant=True)

    writing = await actor(lambda _: rwlock.write().acquire())
    reading = await actor(lambda _: rwlock.read().acquire())
    assert reading is writing
    await actor(lambda _: rwlock.read().release())
    assert await other(lambda client: client.rwlock("a").read().acquire(timeout=0)) is None

    await actor(lambda _: rwlock.write().release())
    assert await other(lambda client: client.rwlock("a").read().acquire(timeout=0))


@pytest.mark.counts_waiters
async def test_a_semaphore_grants_as_many_permits_as_its_limit(lab: Lab) -> None:
    actors = [lab.actor() for _ in range(4)]
    leases = [await actor(lambda client: client.semaphore("a", 3).acquire(timeout=0)) for actor in actors]
    assert [bool(lease) for lease in leases] == [True, True, True, False]

    waiting = lab.start(actors[3], lambda client: client.semaphore("a", 3).acquire())
    await lab.until_waiting("a", 1)
    await actors[1](lambda _: leases[1].release())

    assert (await waiting).fence > leases[2].fence


async def test_one_owner_may_take_several_permits(lab: Lab) -> None:
    actor = lab.actor()
    permits = actor.client.semaphore("a", 2)

    assert await actor(lambda _: permits.acquire(timeout=0))
    assert await actor(lambda _: permits.acquire(timeout=0))
    assert await actor(lambda _: permits.acquire(timeout=0)) is None

    await actor(lambda _: permits.release())
    await actor(lambda _: permits.release())
    with pytest.raises(holdfast.NotHeld):
        await actor(lambda _: permits.release())


async def test_a_limit_is_agreed_between_all_users(lab: Lab) -> None:
    first, second = lab.actor(), lab.actor()
    lease = await first(lambda client: client.semaphore("a", 3).acquire())

    with pytest.raises(holdfast.LimitConflict, match="limit=3, not as a semaphore with limit=5"):
        await second(lambda client: client.semaphore("a", 5).acquire())
    with pytest.raises(holdfast.LimitConflict, match="reader/writer"):
        await second(lambda client: client.rwlock("a").read().acquire(timeout=0))

    await first(lambda _: lease.release())
    assert await second(lambda client: client.semaphore("a", 5).acquire(timeout=0))


async def test_a_semaphore_is_locked_when_no_permit_is_left(lab: Lab) -> None:
    actor = lab.actor()
    permits = actor.client.semaphore("a", 2)
    seen = [await actor(lambda _: permits.locked())]
    for _ in range(2):
        assert await actor(lambda _: permits.acquire(timeout=0))
        seen.append(await actor(lambda _: permits.locked()))
    assert seen == [False, False, True]


async def test_lock_rwlock_and_semaphore_of_one_name_exclude_each_other(lab: Lab) -> None:
    first, second = lab.actor(), lab.actor()
    makers = [
        lambda client: client.lock("a"),
        lambda client: client.rwlock("a").write(),
        lambda client: client.rwlock("a").read(),
        lambda client: client.semaphore("a", 3),
    ]
    shared = {2, 3}

    for index, held in enumerate(makers):
        for other, wanted in enumerate(makers):
            if {index, other} <= shared:
                continue  # readers share, permits share, and the two together are a LimitConflict
            lease = await first(lambda client, make=held: make(client).acquire(timeout=0))
            assert await second(lambda client, make=wanted: make(client).acquire(timeout=0)) is None, (index, other)
            await first(lambda _, taken=lease: taken.release())


@pytest.mark.counts_waiters
async def test_a_mutex_waits_until_all_permits_are_released(lab: Lab) -> None:
    actors = [lab.actor() for _ in range(3)]
    permits = [await actor(lambda client: client.semaphore("a", 2).acquire()) for actor in actors[:2]]
    waiting = lab.start(actors[2], lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)

    await actors[0](lambda _: permits[0].release())
    assert len((await lab.state("a")).waiters) == 1
    await actors[1](lambda _: permits[1].release())

    assert await waiting
