"""The mutex: exclusion, waiting, timeouts, order, fences, and release by other threads or tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast_lab.checking.promises import IN_ORDER
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import Lab

pytestmark = pytest.mark.on_every_method


async def test_the_guarantees_of_a_client_are_the_claims_of_its_backend(lab: Lab, case: Case) -> None:
    actor = lab.actor()

    assert actor.client.guarantees == case.claims


async def test_a_held_lock_is_busy_for_other_clients(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()

    lease = await holder(lambda client: client.lock("a").acquire())
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    assert await other(lambda client: client.lock("b").acquire(timeout=0))

    await holder(lambda _: lease.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_a_lock_reports_whether_it_is_held_and_by_the_caller(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    mine, theirs = holder.client.lock("a"), other.client.lock("a")
    assert not await other(lambda _: theirs.locked())

    await holder(lambda _: mine.acquire())

    assert await other(lambda _: theirs.locked())
    assert await holder(lambda _: mine.held)
    assert not await other(lambda _: theirs.held)


async def test_a_call_that_does_not_wait_is_not_queued(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("a").acquire())

    await other(lambda client: client.lock("a").acquire(timeout=0))

    assert (await lab.state("a")).waiters == ()


async def test_a_timeout_is_waited_out_and_leaves_nothing_behind(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("a").acquire())
    loop = asyncio.get_running_loop()

    before = loop.time()
    assert await other(lambda client: client.lock("a").acquire(timeout=0.3)) is None

    assert loop.time() - before >= 0.3
    assert (await lab.state("a")).waiters == ()


async def test_a_with_block_does_not_run_when_the_lock_is_busy(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("a").acquire())
    entered: list[Any] = []

    for timeout in (0, 0.05):
        with pytest.raises(holdfast.AcquireTimeout) as caught:
            await other.body(lambda client, t=timeout: client.lock("a", timeout=t), entered.append)
        assert caught.value.lock == "a"
        assert caught.value.holder is not None

    assert entered == []


@pytest.mark.counts_waiters
async def test_the_timeout_of_acquire_replaces_the_timeout_of_the_lock(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())

    assert await other(lambda client: client.lock("a", timeout=None).acquire(timeout=0)) is None
    waiting = lab.start(other, lambda client: client.lock("a", timeout=0).acquire(timeout=None))
    await lab.until_waiting("a", 1)
    await holder(lambda _: lease.release())

    assert await waiting


@pytest.mark.counts_waiters
async def test_a_release_grants_the_lock_to_the_waiter(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=60))
    await lab.until_waiting("a", 1)

    await holder(lambda _: lease.release())

    assert (await waiting).fence > lease.fence


@pytest.mark.counts_waiters
async def test_waiters_are_granted_in_the_order_of_their_requests(lab: Lab, case: Case) -> None:
    if case.claims.order not in IN_ORDER:
        pytest.skip(f"{case.name} does not claim to be first come, first served")
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    served: list[int] = []

    async def take_a_turn(number: int) -> None:
        await lab.actor().body(lambda client: client.lock("a"), lambda _: served.append(number))

    turns = []
    for number in range(6):
        turns.append(asyncio.create_task(take_a_turn(number)))
        await lab.until_waiting("a", number + 1)
    await holder(lambda _: lease.release())
    await asyncio.gather(*turns)

    assert served == list(range(6))


@pytest.mark.counts_waiters
async def test_a_newcomer_does_not_overtake_a_waiter(lab: Lab, case: Case) -> None:
    if case.claims.order not in IN_ORDER:
        pytest.skip(f"{case.name} does not claim to be first come, first served")
    holder, waiter, newcomer = lab.actor(), lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)
    await holder(lambda _: lease.release())

    overtaken = await newcomer(lambda client: client.lock("a").acquire(timeout=0))

    assert overtaken is None
    assert await waiting


async def test_fences_grow_from_lease_to_lease(lab: Lab) -> None:
    actors = [lab.actor() for _ in range(3)]

    fences = [await actor.body(lambda client: client.lock("a"), lambda lease: lease.fence) for actor in actors * 5]

    assert fences == sorted(set(fences))
    assert all(isinstance(fence, int) for fence in fences)


async def test_one_client_at_a_time_holds_the_lock_when_many_contend(lab: Lab) -> None:
    inside: list[int] = []
    most: list[int] = []

    def turn(lease: Any) -> None:
        inside.append(lease.fence)
        most.append(len(inside))
        lease.check()
        inside.remove(lease.fence)

    async def many_turns() -> None:
        actor = lab.actor()
        for _ in range(15):
            await actor.body(lambda client: client.lock("a"), turn)

    await asyncio.gather(*(many_turns() for _ in range(8)))

    assert most == [1] * 8 * 15


@pytest.mark.counts_waiters
async def test_threads_or_tasks_that_share_a_client_exclude_each_other(lab: Lab) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    shared = first.client.lock("a")

    await first(lambda _: shared.acquire())
    assert await second(lambda _: shared.acquire(timeout=0)) is None
    assert not await second(lambda _: shared.held)
    waiting = lab.start(second, lambda _: shared.acquire())
    await lab.until_waiting("a", 1)
    await first(lambda _: shared.release())

    assert await waiting
    assert await second(lambda _: shared.held)
    assert not await first(lambda _: shared.held)


async def test_a_lock_releases_only_the_lease_of_the_calling_thread_or_task(lab: Lab) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    shared = first.client.lock("a")
    await first(lambda _: shared.acquire())

    with pytest.raises(holdfast.NotHeld, match="'a'"):
        await second(lambda _: shared.release())

    assert await second(lambda _: shared.locked())


async def test_a_lease_can_be_released_from_anywhere(lab: Lab) -> None:
    first = lab.actor()
    second = lab.actor(like=first)
    lock = first.client.lock("a")
    lease = await first(lambda _: lock.acquire())

    await second(lambda _: lease.release())

    assert not await first(lambda _: lock.held)
    with pytest.raises(holdfast.NotHeld):
        await first(lambda _: lock.release())


async def test_a_lease_is_released_once(lab: Lab) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())
    await actor(lambda _: lease.release())

    with pytest.raises(holdfast.NotHeld, match="released"):
        await actor(lambda _: lease.release())
    with pytest.raises(holdfast.NotHeld):
        lease.check()
    assert not lease.lost
    assert not lease.held
    assert lease.remaining == 0


async def test_the_exception_of_a_body_is_raised_and_the_lock_is_free(lab: Lab) -> None:
    actor, other = lab.actor(), lab.actor()

    with pytest.raises(ZeroDivisionError):
        await actor.body(lambda client: client.lock("a"), lambda _: 1 / 0)

    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_closing_a_client_releases_what_it_holds(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    leases = [await holder(lambda client, n=name: client.lock(n).acquire()) for name in "abc"]

    await holder(lambda client: client.close())

    for name in "abc":
        assert await other(lambda client, n=name: client.lock(n).acquire(timeout=0))
    assert [lease.held for lease in leases] == [False] * 3
    with pytest.raises(holdfast.UsageError, match="closed"):
        await holder(lambda client: client.lock("a").acquire())


@pytest.mark.counts_waiters
async def test_closing_a_client_ends_its_waits(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    closer = lab.actor(like=waiter)
    await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)

    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await waiting
    assert (await lab.state("a")).waiters == ()


async def test_names_are_exact(lab: Lab) -> None:
    """All of them are held at once, so that no two are the same lock."""
    first, second = lab.actor(), lab.actor()
    names = ["x", "a/b", "a/", "a", "A", "ä", "a\u0308", "a ", "a  ", "{a}", "{a", "a}b{", "a}b", "%", "a%"]
    names += ["a\x00", "a\x00b", "\x00", "\n", " "]
    names += ["😀" * 100, "😀" * 99, "n" * 512, "n" * 511, "n" * 510 + " "]

    for name in names:
        assert await first(lambda client, n=name: client.lock(n).acquire(timeout=0)), name

    for name in names:
        assert await second(lambda client, n=name: client.lock(n).acquire(timeout=0)) is None, name
    assert sorted(info.name for info in await second(lambda client: client.locks())) == sorted(names)
