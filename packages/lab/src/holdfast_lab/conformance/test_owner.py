"""Named owners: callers of one owner hold the lock together, with one fence; all others wait for the last release."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Lab

pytestmark = pytest.mark.needs(Primitive.OWNER)


async def test_an_owner_acquires_the_lock_again_from_any_client_with_the_same_fence(lab: Lab) -> None:
    actor_a, actor_b, other = lab.actor(), lab.actor(), lab.actor()

    first = await actor_a(lambda client: client.lock("a", owner="job-42").acquire())
    second = await actor_b(lambda client: client.lock("a", owner="job-42").acquire(timeout=0))

    assert second.fence == first.fence
    for options in ({}, {"owner": "job-43"}):
        assert await other(lambda client, options=options: client.lock("a", **options).acquire(timeout=0)) is None
    await actor_a(lambda _: first.release())
    assert second.held
    await actor_b(lambda _: second.renew())
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    assert [holder.owner for holder in (await lab.state("a")).holders] == ["job-42"]
    await actor_b(lambda _: second.release())
    successor = await other(lambda client: client.lock("a", owner="job-43").acquire(timeout=0))
    assert successor.fence > first.fence


@pytest.mark.counts_waiters
async def test_an_owner_overtakes_waiters(lab: Lab) -> None:
    actor_a, actor_b, other, stranger = (lab.actor() for _ in range(4))
    first = await actor_a(lambda client: client.lock("a", owner="job").acquire())
    waiting = lab.start(other, lambda client: client.lock("a").acquire(timeout=60))
    await lab.until_waiting("a", 1)

    second = await actor_b(lambda client: client.lock("a", owner="job").acquire(timeout=60))

    assert second.fence == first.fence
    await actor_a(lambda _: first.release())
    assert await stranger(lambda client: client.lock("a").acquire(timeout=0.3)) is None
    assert not waiting.done(), "it was queued first, but the owner holds the lock"
    await actor_b(lambda _: second.release())
    assert (await waiting).fence > first.fence


@pytest.mark.counts_waiters
async def test_waiters_of_one_owner_are_granted_together(lab: Lab) -> None:
    holder, actor_a, actor_b, other = (lab.actor() for _ in range(4))
    held = await holder(lambda client: client.lock("a").acquire())
    waiting = []
    for index, (actor, owner) in enumerate(((actor_a, "job"), (other, "another"), (actor_b, "job"))):
        waiting.append(lab.start(actor, lambda client, owner=owner: client.lock("a", owner=owner).acquire(timeout=60)))
        await lab.until_waiting("a", index + 1)

    await holder(lambda _: held.release())

    first, second = await waiting[0], await waiting[2]
    assert first.fence == second.fence > held.fence
    assert not waiting[1].done()
    await actor_a(lambda _: first.release())
    await actor_b(lambda _: second.release())
    assert (await waiting[1]).fence > first.fence


async def test_the_loss_of_one_process_is_not_its_owners(lab: Lab) -> None:
    actor_a, actor_b, other = lab.actor(), lab.actor(), lab.actor()
    first = await actor_a(lambda client: client.lock("a", owner="job", ttl=0.5, renew=False).acquire())
    second = await actor_b(lambda client: client.lock("a", owner="job").acquire(timeout=60))

    assert await actor_a(lambda _: first.wait_lost(60))

    assert await other(lambda client: client.lock("a").acquire(timeout=0.3)) is None
    assert second.held
    again = await actor_a(lambda client: client.lock("a", owner="job").acquire(timeout=60))
    assert again.fence == second.fence
    await actor_b(lambda _: second.release())
    await actor_a(lambda _: again.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=60))


async def test_an_owner_cannot_acquire_twice_within_one_thread_or_task(lab: Lab) -> None:
    actor = lab.actor()
    await actor(lambda client: client.lock("a", owner="job").acquire())

    with pytest.raises(holdfast.WouldDeadlock):
        await actor(lambda client: client.lock("a", owner="job").acquire())
