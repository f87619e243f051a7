"""A world with asyncio: tasks wait until the clock is moved, and everything that is due happens then, in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import unittest
from collections.abc import Awaitable, Callable, Iterator

import pytest

import holdfast
from holdfast.testing import World, memory_async_client

Step = Callable[..., Awaitable[None]]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


async def test_a_lease_is_renewed_while_the_clock_moves(world: World) -> None:
    async with world.async_client() as client, client.lock("a", ttl=30) as lease:
        await world.clock.async_advance(3600)

        lease.check()
        world.assert_held("a", by=client)
        assert [event.kind for event in world.events(client)].count("renewed") == pytest.approx(3600 / 9.9, abs=2)


async def test_a_lost_lock_cancels_the_body(world: World) -> None:
    client = world.async_client()

    with pytest.raises(holdfast.LockLost):
        async with client.lock("a", ttl=30, renew=False):
            await world.clock.async_advance(29)
            world.assert_held("a", by=client)
            await world.clock.async_advance(2)
            pytest.fail("the body continues")

    world.assert_free("a")
    await client.close()


async def test_a_waiting_task_times_out_when_the_clock_reaches_its_timeout(world: World) -> None:
    async with world.async_client() as client:
        with world.hold("a"):
            waiter = asyncio.create_task(client.lock("a").acquire(timeout=5))

            await world.clock.async_advance(4.9)
            assert not waiter.done()
            await world.clock.async_advance(0.1)

            assert waiter.result() is None


async def test_a_wait_of_the_tests_own_task_moves_the_clock(world: World) -> None:
    async with world.async_client() as client:
        with world.hold("a"), pytest.raises(holdfast.AcquireTimeout):
            async with client.lock("a", timeout=5):
                pass

        assert world.clock.now == 5


async def test_an_endless_wait_of_the_tests_own_task_is_an_error(world: World) -> None:
    async with world.async_client() as client:
        with world.hold("a"), pytest.raises(holdfast.UsageError, match="nothing in the world ends this wait"):
            await client.lock("a").acquire()


async def test_the_faults_work_in_tasks(world: World) -> None:
    async with world.async_client() as client, world.async_client() as other:
        lease = await client.lock("a").acquire()
        assert lease is not None
        waiter = asyncio.create_task(other.lock("a").acquire())
        await world.clock.async_settle()
        world.partition(client)
        world.fail_next("renew", holdfast.OutcomeUnknown, applied=True, client=other)

        await world.clock.async_advance(31)

        assert lease.lost
        world.assert_held("a", by=other)
        world.heal()
        granted = waiter.result()
        assert granted is not None
        world.pause(other)
        await world.clock.async_advance(40)
        assert granted.lost
        assert world.events(other)[-1].kind != "lost"
        world.heal()
        await world.clock.async_settle()
        assert world.events(other)[-1].kind == "lost"


async def test_a_leader_that_was_cut_off_leads_again(world: World) -> None:
    terms: list[float] = []

    async def lead(lease: holdfast.AsyncLease) -> None:
        terms.append(world.clock.now)
        await world.clock.async_sleep(3600)

    async with world.async_client() as client:
        election = client.election("a", ttl=30)
        leading = asyncio.create_task(election.run(lead))
        await world.clock.async_advance(10)
        world.partition(client)
        await world.clock.async_advance("1m")
        world.assert_free("a")
        world.heal()
        await world.clock.async_advance(10)

        world.assert_held("a", by=client)
        assert terms == [0, pytest.approx(70, abs=2)]
        election.stop()
        await leading


async def test_the_clock_of_tasks_is_moved_by_a_task(world: World) -> None:
    async with world.async_client() as client, client.lock("a"):
        await world.clock.async_settle()

        with pytest.raises(holdfast.UsageError, match="async_advance"):
            world.clock.advance(1)


def test_another_thread_moves_the_clock_of_tasks(world: World) -> None:
    held = threading.Event()
    lost: list[bool] = []

    async def program() -> None:
        async with world.async_client() as client:
            lease = await client.lock("a", ttl=30, renew=False).acquire()
            assert lease is not None
            held.set()
            lost.append(await lease.wait_lost())

    thread = threading.Thread(target=lambda: asyncio.run(program()))
    thread.start()
    assert held.wait(30)

    world.clock.advance(31)

    thread.join(30)
    assert lost == [True]


async def test_tasks_with_a_lock_exclude_each_other(world: World) -> None:
    client = world.async_client()

    async def right(step: Step) -> None:
        async with client.lock("a"):
            await step()

    async def wrong(step: Step) -> None:
        await step()

    await world.async_assert_excluded(right)
    with pytest.raises(AssertionError, match="5 of 5 callers"):
        await world.async_assert_excluded(wrong, n=5)
    await client.close()


async def test_a_body_that_is_cancelled_at_a_loss_needs_no_check(world: World) -> None:
    client = world.async_client()

    async def program(step: Step) -> None:
        async with client.lock("a"):
            await step()
            await step()
            await step()

    await world.async_assert_checks_lease(program)
    await client.close()


async def test_a_task_that_suppresses_its_loss_is_found(world: World) -> None:
    client = world.async_client()

    async def program(step: Step) -> None:
        async with client.lock("a", on_lost="event"):
            await step()
            await step()

    async def checked(step: Step) -> None:
        async with client.lock("a", on_lost="event") as lease:
            for _ in range(2):
                lease.check()
                await step()

    with pytest.raises(AssertionError, match="step 2 was done although the lock was lost after"):
        await world.async_assert_checks_lease(program)
    await world.async_assert_checks_lease(checked)
    await client.close()


def test_a_client_that_was_not_closed_in_its_loop_ends_with_the_world(world: World) -> None:
    async def program() -> holdfast.AsyncLease | None:
        return await world.async_client().lock("a").acquire()

    lease = asyncio.run(program())

    assert lease is not None
    world.close()
    with contextlib.suppress(holdfast.NotHeld):
        lease.check()
        pytest.fail("the lease counts as held")


async def test_a_world_that_is_closed_inside_the_loop_leaves_no_task_behind() -> None:
    with World() as world:
        client = world.async_client()
        lease = await client.lock("a").acquire()
        assert lease is not None
        sleeper = asyncio.create_task(world.clock.async_sleep(10))
        waiter = asyncio.create_task(client.lock("a").acquire(timeout=60))
        await world.clock.async_settle()

    with pytest.raises(holdfast.UsageError, match="the world is closed"):
        await sleeper
    with pytest.raises(holdfast.UsageError, match="closed during this call"):
        await waiter
    async with asyncio.timeout(30):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


def test_a_loop_that_is_blocked_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.clock.SETTLE_MAX", 0.05)
    blocked, go = threading.Event(), threading.Event()

    async def program() -> None:
        await world.clock.async_settle()
        blocked.set()
        go.wait(30)

    thread = threading.Thread(target=lambda: asyncio.run(program()))
    thread.start()
    assert blocked.wait(30)

    with pytest.raises(holdfast.UsageError, match="does not run"):
        world.clock.advance(1)

    go.set()
    thread.join(30)


class UnittestCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.client = self.enterContext(memory_async_client())

    async def test_a_client_works_with_unittest(self) -> None:
        async with self.client.lock("a"):
            assert await self.client.lock("a").locked()
