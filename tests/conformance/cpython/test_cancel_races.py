"""The races of CPython's test_locks that cannot run unchanged. These tests wait for the state of the store instead.

The hazard: a cancellation during a hand-over of the lock. After any number of turns of the loop between the release and
the cancellation, the lock must be neither lost (no task can acquire it any more) nor granted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.core.tickets import WAITER_LEASE
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import until, waiting_in
from tests.conformance.backends import BACKENDS

pytestmark = pytest.mark.cases(BACKENDS)  # only on the default method of each backend

HANG = 30.0  # seconds; a longer wait is a hang
SOON = WAITER_LEASE / 2  # well before an abandoned waiter expires on the store
# What passes between the release and the cancellation: turns of the loop, or requests to the store, which answers in
# order. A hand-over takes about three of either, so the second step comes before, during or after it.
MOMENTS = [*(f"{count} turns" for count in range(6)), *(f"{count} requests" for count in range(1, 5))]
# The other combinations run only with --all-methods.
_USUAL = {
    *(("lock", moment) for moment in ("0 turns", "2 turns", "3 turns", "1 requests", "2 requests", "3 requests")),
    *(("semaphore", moment) for moment in ("1 turns", "2 requests")),
}
RACES = [
    pytest.param(make, moment, marks=() if (make, moment) in _USUAL else pytest.mark.extra)
    for make in ("lock", "semaphore")
    for moment in MOMENTS
]

T = TypeVar("T")

MakeLock = Callable[[holdfast.AsyncClient], holdfast.AsyncLock]


@pytest.fixture(params=["lock", "semaphore"])
def make(request: pytest.FixtureRequest) -> MakeLock:
    """A lock, or a semaphore of one permit, which must behave in the same way."""
    if request.param == "lock":
        return lambda client: client.lock("a")
    return lambda client: client.semaphore("a", limit=1)


@pytest.mark.parametrize(("make", "moment"), RACES, indirect=["make"])
async def test_the_next_waiter_acquires_the_lock_when_the_first_is_cancelled_during_the_release(
    case: Case, tmp_path: Path, make: MakeLock, moment: str
) -> None:
    """For LockTests.test_cancel_race and SemaphoreTests.test_acquire_no_hang."""
    async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
        lock = make(client)
        may_release = asyncio.Event()

        async def hold(until_set: asyncio.Event | None) -> None:
            await lock.acquire()
            try:
                if until_set is not None:
                    await until_set.wait()
            finally:
                await lock.release()

        a = asyncio.create_task(hold(may_release))
        await _await_state(client, holders=1)
        b = await _start_waiter(client, hold(None), waiters=1)
        c = await _start_waiter(client, hold(None), waiters=2)

        may_release.set()
        await _let_pass(client, moment)
        b.cancel()

        async with asyncio.timeout(HANG):
            await a
            await _finished_or_cancelled(b)
            await c
            assert await lock.acquire()
            await lock.release()
        await _await_state(client, holders=0, waiters=0)


@pytest.mark.parametrize(("make", "moment"), RACES, indirect=["make"])
@pytest.mark.parametrize("first", ["cancel", "release"])
async def test_a_cancellation_during_a_release_grants_the_lock_to_exactly_one_waiter(
    case: Case, tmp_path: Path, make: MakeLock, first: str, moment: str
) -> None:
    """For LockTests.test_cancel_release_race."""
    async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
        lock = make(client)
        held = await lock.acquire()
        assert held is not None
        waiters = [await _start_waiter(client, lock.acquire(), waiters=count) for count in (1, 2, 3)]

        if first == "cancel":
            waiters[0].cancel()
            await _let_pass(client, moment)
            await held.release()
        else:
            releasing = asyncio.create_task(held.release())
            await _let_pass(client, moment)
            waiters[0].cancel()
            await releasing

        leases = [held]
        if await _finished_or_cancelled(waiters[0]) is None:
            waiters = waiters[1:]
        for waiting, waiter in zip(reversed(range(len(waiters))), waiters, strict=True):
            async with asyncio.timeout(HANG):
                lease = await waiter
            assert lease is not None
            await _await_state(client, holders=1, waiters=waiting)
            assert [other.done() for other in waiters[len(waiters) - waiting :]] == [False] * waiting
            assert lease.fence > leases[-1].fence
            leases.append(lease)
            await lease.release()
        await _await_state(client, holders=0, waiters=0)


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_cancelled_waiters_are_skipped_and_later_waiters_keep_their_order(
    case: Case, tmp_path: Path, make: MakeLock, cancelled: int
) -> None:
    """For SemaphoreTests.test_acquire_cancel_before_awoken and test_acquire_hang."""
    async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
        lock = make(client)
        held = await lock.acquire()
        assert held is not None
        cancelled_waiters = [
            await _start_waiter(client, lock.acquire(), waiters=1 + count) for count in range(cancelled)
        ]
        third = await _start_waiter(client, lock.acquire(), waiters=cancelled + 1)
        fourth = await _start_waiter(client, lock.acquire(), waiters=cancelled + 2)

        for waiter in cancelled_waiters:
            waiter.cancel()
        await held.release()

        async with asyncio.timeout(HANG):
            lease = await third
        assert lease is not None
        await _await_state(client, holders=1, waiters=1)
        assert [waiter.cancelled() for waiter in cancelled_waiters] == [True] * cancelled
        assert not fourth.done()
        assert await lock.locked()
        fourth.cancel()
        await _await_state(client, holders=1, waiters=0, within=SOON)
        await lease.release()


async def test_a_cancelled_waiter_loses_its_place_and_the_others_keep_theirs(
    case: Case, tmp_path: Path, make: MakeLock
) -> None:
    """For SemaphoreTests.test_acquire_fifo_order_3."""
    async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
        lock = make(client)
        served: list[int] = []

        async def take(number: int) -> None:
            async with lock:
                served.append(number)

        async with lock:
            waiters = [await _start_waiter(client, take(number), waiters=number) for number in (1, 2, 3)]
            waiters[0].cancel()
            await _await_state(client, holders=1, waiters=2, within=SOON)

        async with asyncio.timeout(HANG):
            await asyncio.gather(*waiters, return_exceptions=True)
        assert served == [2, 3]
        assert waiters[0].cancelled()


async def test_a_lock_that_was_not_acquired_cannot_be_released(case: Case, tmp_path: Path, make: MakeLock) -> None:
    """For LockTests.test_release_not_acquired and SemaphoreTests.test_release_not_acquired."""
    async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
        lock = make(client)
        with pytest.raises(holdfast.NotHeld):
            await lock.release()

        lease = await lock.acquire()
        assert lease is not None
        await lock.release()

        with pytest.raises(holdfast.NotHeld):
            await lock.release()
        with pytest.raises(holdfast.NotHeld):
            await lease.release()
        assert not await lock.locked()


async def _start_waiter(client: holdfast.AsyncClient, work: Coroutine[Any, Any, T], *, waiters: int) -> asyncio.Task[T]:
    """Start a task, and wait until it is the last of this number of waiters."""
    task = asyncio.create_task(work)
    await _await_state(client, holders=1, waiters=waiters)
    return task


async def _await_state(client: holdfast.AsyncClient, *, holders: int, waiters: int = 0, within: float = HANG) -> None:
    async def shows() -> bool:
        info = await client.inspect("a")
        return (len(info.holders), len(info.waiters) + len(waiting_in(client, "a"))) == (holders, waiters)

    await until(shows, f"{holders} holder(s) and {waiters} waiter(s)", within)


async def _let_pass(client: holdfast.AsyncClient, moment: str) -> None:
    count, unit = moment.split()
    for _ in range(int(count)):
        if unit == "requests":
            await client.inspect("a")
        await asyncio.sleep(0)


async def _finished_or_cancelled(task: asyncio.Task[T]) -> T | None:
    """The result of the task, or None if it was cancelled. The test accepts both, because the order is not fixed."""
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()
