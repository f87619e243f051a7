"""Re-entry and self-deadlock: by client, name and owner; never by a lock object, never by a number that is reused."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until


async def test_a_second_acquire_raises_would_deadlock(lab: Lab) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())

    with pytest.raises(holdfast.WouldDeadlock, match="reentrant=True") as caught:
        await actor(lambda client: client.lock("a").acquire())

    assert (caught.value.lock, caught.value.fence) == ("a", lease.fence)


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_a_second_acquire_with_a_timeout_finds_the_lock_busy(lab: Lab, timeout: float) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())

    assert await actor(lambda client: client.lock("a").acquire(timeout=timeout)) is None
    assert lease.held


async def test_a_wait_for_its_own_lock_ends_when_another_thread_or_task_releases_it(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())
    queued: list[holdfast.Event] = []
    actor.client.subscribe(lambda event: queued.append(event) if event.kind == "queued" else None)
    waiting = lab.start(actor, lambda client: client.lock("a").acquire(timeout=60))
    await until(lambda: asyncio.sleep(0, bool(queued)), "it waits for itself")

    releasing = lab.actor(like=actor)
    await releasing(lambda _: lease.release())

    again = await waiting
    assert again.fence > lease.fence
    await actor(lambda _: again.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=60))


async def test_re_entry_counts_and_keeps_the_fence(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()
    lock = actor.client.lock("a", reentrant=True)

    first = await actor(lambda _: lock.acquire())
    second = await actor(lambda client: client.lock("a", reentrant=True).acquire())
    assert second is first
    await actor(lambda _: second.release())
    assert first.held
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None

    await actor(lambda _: lock.release())
    assert not first.held
    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_a_reentrant_acquire_is_refused_when_the_first_was_not_reentrant(lab: Lab) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())

    with pytest.raises(holdfast.WouldDeadlock):
        await actor(lambda client: client.lock("a", reentrant=True).acquire())

    await actor(lambda _: lease.release())


async def test_another_thread_or_task_does_not_re_enter(lab: Lab) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    lock = first.client.lock("a", reentrant=True)
    lease = await first(lambda _: lock.acquire())

    assert await second(lambda _: lock.acquire(timeout=0)) is None

    await first(lambda _: lease.release())


async def test_a_lost_lease_does_not_block_its_former_holder(lab: Lab) -> None:
    actor = lab.actor()
    # The votes of a Redlock have to arrive within the ttl, also on a busy machine.
    first = await actor(lambda client: client.lock("a", ttl=1.0, renew=False).acquire())
    await actor(lambda _: first.wait_lost())

    second = await actor(lambda client: client.lock("a").acquire(timeout=30))

    assert second.fence > first.fence


async def test_nested_bodies_end_with_the_outermost(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()
    lock = actor.client.lock("a", reentrant=True)
    outer = await actor(lambda _: lock.acquire())

    await actor.body(lambda _: lock, lambda inner: inner.check())
    assert outer.held
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None

    await actor(lambda _: lock.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=0))
