"""A loss cancels the body of `async with`, which raises LockLost. Other cancellations are kept, and none remains."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.testing import World


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def in_a_thread(work: Callable[[], None]) -> None:
    """Block the loop, so that only the thread can detect the loss."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


class VirtualTime:
    """A client in a world, whose clock the test moves."""

    def __init__(self, world: World) -> None:
        self.client = world.async_client()
        self._clock = world.clock

    def lock(self, **options: Any) -> holdfast.AsyncLock:
        return self.client.lock("a", ttl=30, renew=False, **options)

    async def pass_ttl(self) -> None:
        await self._clock.async_advance(31)

    async def be_cancelled(self) -> None:
        """Let the ttl pass and sleep. The loss cancels this."""
        await self.pass_ttl()
        await asyncio.sleep(60)

    async def aclose(self) -> None:
        await self.client.close()


@pytest.fixture
def virtual(holdfast_world: World) -> VirtualTime:
    return VirtualTime(holdfast_world)


class RealTime:
    """A client in real time, for tests that block the loop."""

    def __init__(self) -> None:
        self.client = holdfast.AsyncClient("memory://loss")

    def lock(self, **options: Any) -> holdfast.AsyncLock:
        return self.client.lock("a", ttl=0.1, renew=False, **options)

    async def aclose(self) -> None:
        await self.client.close()


@pytest.fixture
def real() -> RealTime:
    return RealTime()


async def test_a_loss_cancels_the_body(virtual: VirtualTime) -> None:
    with pytest.raises(holdfast.LockLost) as caught:
        async with virtual.lock():
            await virtual.be_cancelled()

    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert current_task().cancelling() == 0
    await asyncio.sleep(0)  # no cancellation remains


async def test_a_loss_with_a_stop_margin_cancels_while_the_lock_is_still_held(virtual: VirtualTime) -> None:
    lock = virtual.lock(stop_margin=5)

    with pytest.raises(holdfast.LockLost):
        async with lock as lease:
            try:
                await virtual.be_cancelled()
            finally:
                assert await virtual.client.lock("a").locked()
                assert lease.lost

    async with virtual.client.lock("a", timeout=5):
        pass


async def test_a_loss_that_the_body_itself_detects_leaves_no_cancellation_behind(real: RealTime) -> None:
    with pytest.raises(holdfast.LockLost) as caught:
        async with real.lock() as lease:
            while True:
                lease.check()  # the loop is blocked, so only this code can detect the loss

    assert caught.value.__cause__ is None
    for _ in range(3):
        await asyncio.sleep(0)
    assert current_task().cancelling() == 0


async def test_the_exception_of_a_body_is_raised_instead_of_the_loss(virtual: VirtualTime) -> None:
    with pytest.raises(ZeroDivisionError):
        async with virtual.lock():
            try:
                await virtual.be_cancelled()
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    assert current_task().cancelling() == 0


async def test_a_body_that_swallows_the_cancellation_still_ends_with_the_loss(virtual: VirtualTime) -> None:
    with pytest.raises(holdfast.LockLost):
        async with virtual.lock():
            with contextlib.suppress(asyncio.CancelledError):
                await virtual.be_cancelled()

    assert current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancellation_by_other_code_is_raised_instead_of_the_loss(virtual: VirtualTime) -> None:
    async def work() -> None:
        async with virtual.lock():
            try:
                await virtual.be_cancelled()
            finally:
                current_task().cancel()  # as another thread would at the same moment

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task

    assert task.cancelled()


async def test_a_cancellation_without_a_loss_is_not_reported_as_a_loss(virtual: VirtualTime) -> None:
    async def work() -> None:
        async with virtual.client.lock("a"):
            started.set()
            await asyncio.sleep(60)

    started = asyncio.Event()
    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not await virtual.client.lock("a").locked()


async def test_a_timeout_around_the_body_is_still_a_timeout(virtual: VirtualTime) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), virtual.client.lock("a"):
            await asyncio.sleep(60)

    assert not await virtual.client.lock("a").locked()


async def test_a_loss_inside_a_timeout_is_still_a_loss(virtual: VirtualTime) -> None:
    with pytest.raises(holdfast.LockLost):
        async with asyncio.timeout(60), virtual.lock():
            await virtual.be_cancelled()


async def test_a_loss_ends_a_task_group_with_lock_lost(virtual: VirtualTime) -> None:
    async def work() -> None:
        async with virtual.lock():
            await virtual.be_cancelled()

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(work())

    assert [type(error) for error in caught.value.exceptions] == [holdfast.LockLost]


async def test_a_loss_is_reported_first_to_the_task_that_entered_first(virtual: VirtualTime) -> None:
    entered = asyncio.Event()

    async def work(lease: holdfast.AsyncLease) -> None:
        async with lease:
            entered.set()
            await asyncio.sleep(60)

    async def work_in_group() -> None:
        async with virtual.lock() as lease, asyncio.TaskGroup() as group:
            group.create_task(work(lease))

    task = asyncio.create_task(work_in_group())
    await entered.wait()
    await virtual.pass_ttl()

    with pytest.raises(holdfast.LockLost):  # and not an ExceptionGroup with the loss of the inner task
        await task


async def test_on_lost_event_leaves_the_body_alone(virtual: VirtualTime) -> None:
    finished = False

    with pytest.raises(holdfast.LockLost):
        async with virtual.lock(on_lost="event"):
            await virtual.pass_ttl()
            finished = True

    assert finished


async def test_a_function_is_called_and_the_body_cancelled(virtual: VirtualTime) -> None:
    reported: list[Any] = []

    async def report(lease: holdfast.AsyncLease) -> None:
        await asyncio.sleep(0)
        reported.append(lease.fence)

    with pytest.raises(holdfast.LockLost) as caught:
        async with virtual.lock(on_lost=report):
            await virtual.be_cancelled()
    for _ in range(3):
        await asyncio.sleep(0)

    assert reported == [caught.value.fence]


async def test_only_the_outermost_of_nested_bodies_raises_lock_lost(virtual: VirtualTime) -> None:
    lock = virtual.lock(reentrant=True)
    errors: list[type[BaseException]] = []

    with pytest.raises(holdfast.LockLost):
        async with lock:
            try:
                async with lock:
                    await virtual.be_cancelled()
            except BaseException as error:
                errors.append(type(error))
                raise

    assert errors == [asyncio.CancelledError]
    assert current_task().cancelling() == 0


async def test_a_lease_can_be_entered_with_async_with(virtual: VirtualTime) -> None:
    lease = await virtual.lock().acquire()
    assert lease is not None

    with pytest.raises(holdfast.LockLost):
        async with lease:
            await virtual.be_cancelled()


async def test_a_thread_beside_the_loop_sees_the_loss_and_the_loop_reports_it(real: RealTime) -> None:
    """As with `asyncio.to_thread`: the work runs in a thread, and checks its lease there."""
    reported: list[int] = []
    lease = await real.lock(on_lost=lambda lost: reported.append(lost.fence)).acquire()
    assert lease is not None
    state: list[object] = []

    def work() -> None:
        while not lease.lost:
            time.sleep(0.01)
        state.extend((lease.held, lease.remaining))
        with pytest.raises(holdfast.LockLost, match=r"ttl of 0\.1 s is over"):
            lease.check()

    in_a_thread(work)

    assert state == [False, 0.0]
    assert reported == []
    await asyncio.wait_for(lease.wait_lost(), 10)
    while not reported:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert reported == [lease.fence]  # once


async def test_a_thread_sees_the_loss_of_several_locks(real: RealTime) -> None:
    leases = await real.client.lock_all(["a", "b"], ttl=0.1, renew=False).acquire()
    assert leases is not None

    def work() -> None:
        while not leases.lost:
            time.sleep(0.01)
        with pytest.raises(holdfast.LockLost):
            leases.check()

    in_a_thread(work)

    with pytest.raises(holdfast.LockLost, match="with it"):
        while True:
            leases.check()
            await asyncio.sleep(0.01)


def test_a_lease_that_outlives_its_loop_is_lost_at_its_deadline(holdfast_world: World) -> None:
    lock = holdfast_world.async_client().lock("a", ttl=30, renew=False)
    lease = asyncio.run(_acquired(lock))
    assert lease.held

    holdfast_world.clock.advance(31)

    assert lease.lost
    with pytest.raises(holdfast.LockLost):
        lease.check()
    del lease  # without a ResourceWarning, because it was lost before


async def _acquired(lock: holdfast.AsyncLock) -> holdfast.AsyncLease:
    lease = await lock.acquire()
    assert lease is not None
    return lease
