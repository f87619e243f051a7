"""A `with` block releases exactly the lease that it entered with, from whichever thread or task leaves it.

Hazards: a lock object that several blocks share, blocks that are left in another order or by another thread or task
(generators, FastAPI's dependencies), leases that end inside the block, a client that is closed inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.testing import World


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def client(url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(url) as client:
        yield client


class ClosedAfterTest(holdfast.AsyncClient):
    aclose = holdfast.AsyncClient.close


@pytest.fixture
def aclient(url: str) -> holdfast.AsyncClient:
    return ClosedAfterTest(url)


@pytest.fixture
def in_other_thread() -> Iterator[Callable[..., Any]]:
    """Run a function in another thread, always the same one."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda function, *args: threads.submit(function, *args).result()


def block(lock: Any) -> Generator[Any]:
    with lock as lease:
        yield lease


async def async_block(lock: Any) -> AsyncIterator[Any]:
    async with lock as lease:
        yield lease


def is_free(client: holdfast.Client, name: str = "a") -> bool:
    return not client.inspect(name).holders


# ── which lease ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_block_releases_its_own_lease_when_the_body_took_another(client: holdfast.Client) -> None:
    semaphore = client.semaphore("a", 3)

    with semaphore as first:
        second = semaphore.acquire()

    assert second is not None
    assert (first.held, second.held) == (False, True)
    second.release()


def test_a_loss_in_the_body_is_raised_when_the_body_took_the_lock_again(client: holdfast.Client) -> None:
    lock = client.lock("a")

    with pytest.raises(holdfast.LockLost) as caught, lock as first:
        client.break_lock("a", first.fence)
        with pytest.raises(holdfast.LockLost):
            first.renew()
        second = lock.acquire()

    assert second is not None
    assert caught.value.fence == first.fence
    assert second.held
    second.release()


def test_blocks_left_in_another_order_release_their_own_leases(client: holdfast.Client) -> None:
    semaphore = client.semaphore("a", 3)
    blocks = [block(semaphore) for _ in range(3)]
    leases = [next(block) for block in blocks]

    for index in (1, 0, 2):
        next(blocks[index], None)
        assert not leases[index].held
    assert is_free(client)


def test_a_block_that_another_thread_leaves_inside_its_own_block_releases_its_own_lease(
    client: holdfast.Client, in_other_thread: Callable[..., Any]
) -> None:
    semaphore = client.semaphore("a", 2)
    first = block(semaphore)
    lease_of_other = in_other_thread(next, first)

    with semaphore as own_lease:
        next(first, None)
        assert (lease_of_other.held, own_lease.held) == (False, True)

    assert is_free(client)


def test_a_stack_releases_its_own_leases_when_another_thread_closes_it(
    client: holdfast.Client, in_other_thread: Callable[..., Any]
) -> None:
    semaphore, lock_all = client.semaphore("a", 3), client.lock_all(["b", "c"])
    stack = contextlib.ExitStack()
    leases = [in_other_thread(stack.enter_context, source) for source in (semaphore, semaphore, lock_all)]

    with semaphore as own_lease:
        stack.close()
        assert not any(lease.held for lease in leases)
        assert own_lease.held

    assert all(is_free(client, name) for name in "abc")


def test_an_exit_called_by_hand_releases_by_thread(
    client: holdfast.Client, in_other_thread: Callable[..., Any]
) -> None:
    semaphore = client.semaphore("a", 3)
    own_lease = semaphore.__enter__()
    lease_of_other = in_other_thread(semaphore.__enter__)

    semaphore.__exit__(None, None, None)
    assert (lease_of_other.held, own_lease.held) == (True, False)

    with pytest.raises(holdfast.NotHeld, match="this thread or task"):
        semaphore.__exit__(None, None, None)
    in_other_thread(semaphore.__exit__, None, None, None)
    assert is_free(client)


def test_an_exit_function_called_again_releases_the_last_lease_of_the_thread(
    client: holdfast.Client, in_other_thread: Callable[..., Any]
) -> None:
    semaphore = client.semaphore("a", 3)
    release = semaphore.__exit__
    for _ in range(2):
        lease = semaphore.__enter__()
        release(None, None, None)
        assert not lease.held

    lease_of_other = in_other_thread(semaphore.__enter__)
    with pytest.raises(holdfast.NotHeld):
        release(None, None, None)
    lease_of_other.release()


# ── blocks that another thread or task leaves ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", ["lock", "lock_all"])
def test_a_block_that_another_thread_leaves_releases_its_lease(
    client: holdfast.Client, in_other_thread: Callable[..., Any], make: str
) -> None:
    lock = client.lock("a") if make == "lock" else client.lock_all(["a", "b"])
    entered = block(lock)
    lease = in_other_thread(next, entered)
    assert lease.held

    next(entered, None)

    assert not lease.held
    assert is_free(client)
    assert not in_other_thread(lambda: lock.held)


def test_a_block_keeps_its_lease_when_the_thread_that_entered_it_has_ended(client: holdfast.Client) -> None:
    entered = block(client.lock("a"))
    thread = threading.Thread(target=next, args=(entered,))
    thread.start()
    thread.join()
    gc.collect()
    assert not is_free(client)

    entered.close()

    assert is_free(client)


def test_a_reentrant_lock_stays_held_until_its_last_block_is_left(
    client: holdfast.Client, in_other_thread: Callable[..., Any]
) -> None:
    lock = client.lock("a", reentrant=True)
    outer, inner = block(lock), block(lock)
    lease = in_other_thread(next, outer)
    assert in_other_thread(next, inner) is lease

    outer.close()
    assert lease.held
    inner.close()
    assert is_free(client)


@pytest.mark.parametrize("make", ["lock", "lock_all"])
async def test_a_generator_that_the_loop_closes_releases_its_lease(aclient: holdfast.AsyncClient, make: str) -> None:
    lock = aclient.lock("a") if make == "lock" else aclient.lock_all(["a", "b"])

    async def leave_early() -> Any:
        async for lease in async_block(lock):
            return lease
        raise AssertionError

    lease = await asyncio.create_task(leave_early())
    async with asyncio.timeout(10):
        while await aclient.lock("a").locked():
            gc.collect()
            await asyncio.sleep(0.001)

    assert not lease.held


async def test_blocks_left_by_another_task_release_their_own_leases(aclient: holdfast.AsyncClient) -> None:
    semaphore = aclient.semaphore("a", 3)
    blocks = [async_block(semaphore) for _ in range(2)]
    leases: list[Any] = [await asyncio.create_task(anext(block)) for block in blocks]  # type: ignore[arg-type]

    async with semaphore as own_lease:
        for each, lease in zip(blocks, leases, strict=True):
            assert await anext(each, None) is None
            assert not lease.held
        assert own_lease.held

    assert not await semaphore.locked()


async def test_an_async_stack_releases_its_own_leases_when_another_task_closes_it(
    aclient: holdfast.AsyncClient,
) -> None:
    semaphore, lock_all = aclient.semaphore("a", 3), aclient.lock_all(["b", "c"])
    stack = contextlib.AsyncExitStack()
    leases: list[Any] = [
        await asyncio.create_task(stack.enter_async_context(source)) for source in (semaphore, semaphore, lock_all)
    ]

    async with semaphore as own_lease:
        await stack.aclose()
        assert not any(lease.held for lease in leases)
        assert own_lease.held


async def test_a_lease_belongs_to_the_task_that_called_acquire(aclient: holdfast.AsyncClient) -> None:
    lock, lock_all, election = aclient.lock("a"), aclient.lock_all(["b", "c"]), aclient.election("d")

    for work, source in ((lock.acquire(), lock), (lock_all.acquire(), lock_all), (election.campaign(), election)):
        # Up to Python 3.11 `asyncio.wait_for` runs the coroutine in a task of its own, as `gather` and `shield` do.
        assert await asyncio.create_task(work)
        gc.collect()
        assert source.held
        await source.release()


async def test_an_acquire_in_a_task_of_its_own_waits_for_the_task_that_called_it(aclient: holdfast.AsyncClient) -> None:
    lock = aclient.lock("a")
    first = await lock.acquire()
    assert first is not None
    waiting = asyncio.create_task(lock.acquire())
    async with asyncio.timeout(10):
        while not (await aclient.inspect("a")).waiters:
            await asyncio.sleep(0.001)

    await first.release()

    second = await waiting
    assert second is not None
    assert lock.held
    with pytest.raises(holdfast.WouldDeadlock):
        await lock.acquire()
    await lock.release()


async def test_a_reentrant_lock_counts_for_the_calling_task_also_in_a_task_of_its_own(
    aclient: holdfast.AsyncClient,
) -> None:
    lock = aclient.lock("a", reentrant=True)

    async with lock as lease:
        assert await asyncio.create_task(lock.acquire()) is lease
        await lock.release()
        assert lease.held

    assert not lease.held


def test_acquire_may_be_called_where_no_task_runs(url: str) -> None:
    client = holdfast.AsyncClient(url)

    async def close() -> None:
        await client.close()

    with asyncio.Runner() as runner:
        lease = runner.run(client.lock("a").acquire())
        assert lease is not None
        assert lease.held
        runner.run(close())


# ── a lease that has ended ───────────────────────────────────────────────────────────────────────────────────────────


def ended_leases(client: holdfast.Client) -> Iterator[tuple[Any, type[Exception]]]:
    makes: list[Callable[[], Any]] = [lambda: client.lock("a"), lambda: client.lock_all(["a", "b"])]
    for make in makes:
        released = make().acquire()
        released.release()
        yield released, holdfast.NotHeld
        lost = make().acquire()
        client.break_lock("a", client.inspect("a").holders[0].fence or 0)
        with pytest.raises(holdfast.LockLost):
            lost.renew()
        yield lost, holdfast.LockLost


def test_a_block_on_a_lease_that_has_ended_is_not_entered(client: holdfast.Client) -> None:
    for lease, error in ended_leases(client):
        with pytest.raises(error), lease:
            pytest.fail("the body ran without the lock")


async def test_an_async_block_on_a_lease_that_has_ended_is_not_entered(aclient: holdfast.AsyncClient) -> None:
    makes: list[Callable[[], Any]] = [lambda: aclient.lock("a"), lambda: aclient.lock_all(["a", "b"])]
    for make in makes:
        released = await make().acquire()
        await released.release()
        lost = await make().acquire()
        await aclient.break_lock("a", (await aclient.inspect("a")).holders[0].fence or 0)
        with pytest.raises(holdfast.LockLost):
            await lost.renew()

        for lease, error in ((released, holdfast.NotHeld), (lost, holdfast.LockLost)):
            with pytest.raises(error):
                async with lease:
                    pytest.fail("the body ran without the lock")


async def test_a_loss_after_an_inner_block_cancels_nothing(aclient: holdfast.AsyncClient) -> None:
    lock = aclient.lock("a", reentrant=True)
    lease = await lock.acquire()
    assert lease is not None
    async with lock:
        pass

    await aclient.break_lock("a", lease.fence)
    with pytest.raises(holdfast.LockLost):
        await lease.renew()

    for _ in range(3):
        await asyncio.sleep(0)
    assert lease.lost


async def test_a_loss_cancels_the_inner_block_of_a_lease_that_was_acquired_outside(holdfast_world: World) -> None:
    lock = holdfast_world.async_client().lock("a", reentrant=True)
    lease = await lock.acquire()
    assert lease is not None

    with pytest.raises(holdfast.LockLost):
        async with lock as again:
            assert again is lease
            holdfast_world.lose(lease)
            await asyncio.sleep(60)

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_loss_ends_nested_blocks_with_one_cancellation(holdfast_world: World) -> None:
    lock = holdfast_world.async_client().lock("a", reentrant=True)
    ended_inside: list[BaseException] = []

    with pytest.raises(holdfast.LockLost):
        async with lock:
            try:
                async with lock as lease:
                    holdfast_world.lose(lease)
                    await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                ended_inside.append(error)
                raise

    assert len(ended_inside) == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


# ── a client that is closed inside ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", ["lock", "lock_all"])
def test_the_exception_of_a_body_is_raised_when_the_client_was_closed(url: str, make: str) -> None:
    client = holdfast.Client(url)
    lock = client.lock("a") if make == "lock" else client.lock_all(["a"])

    with pytest.raises(ValueError, match="its own"), lock:
        client.close()
        raise ValueError("its own")


@pytest.mark.parametrize("make", ["lock", "lock_all"])
def test_a_body_that_ends_after_its_client_was_closed_raises(url: str, make: str) -> None:
    client = holdfast.Client(url)
    lock = client.lock("a") if make == "lock" else client.lock_all(["a"])

    with pytest.raises(holdfast.NotHeld, match="closed"), lock:
        client.close()


@pytest.mark.parametrize("make", ["lock", "lock_all"])
async def test_the_exception_of_an_async_body_is_raised_when_the_client_was_closed(url: str, make: str) -> None:
    client = holdfast.AsyncClient(url)
    lock = client.lock("a") if make == "lock" else client.lock_all(["a"])
    entered = asyncio.Event()

    async def work() -> None:
        async with lock:
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await entered.wait()
    await client.close()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_waiting_for_a_loss_ends_when_the_client_is_closed(url: str, in_other_thread: Callable[..., Any]) -> None:
    client = holdfast.Client(url)
    lease = client.lock("a", ttl=60).acquire()
    assert lease is not None
    waiting = threading.Event()
    outcome: list[bool] = []

    def wait() -> None:
        waiting.set()
        outcome.append(lease.wait_lost(timeout=50))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    client.close()
    thread.join(10)

    assert outcome == [False]


async def test_closing_does_not_wait_for_the_callbacks_of_a_user(url: str) -> None:
    client = holdfast.AsyncClient(url)
    called, closed = asyncio.Event(), asyncio.Event()

    async def on_lost(_: object) -> None:
        called.set()
        await closed.wait()

    lease = await client.lock("a", ttl=0.1, renew=False, on_lost=on_lost).acquire()
    await called.wait()
    async with asyncio.timeout(5):
        await client.close()
    closed.set()
    assert lease is not None
    assert lease.lost


def test_async_with_on_an_object_for_threads_names_the_async_client(client: holdfast.Client) -> None:
    lease = client.lock("a").acquire()
    assert lease
    group = client.lock_all(["b"]).acquire()
    assert group
    objects: list[Any] = [client, client.lock("c"), client.semaphore("d", 2), client.lock_all(["e"]), lease, group]

    async def enter(entered: Any) -> None:
        async with entered:
            pytest.fail("the body ran")

    for entered in objects:
        with pytest.raises(holdfast.UsageError, match=rf"this {type(entered).__name__} is .*holdfast\.AsyncClient"):
            asyncio.run(enter(entered))

    lease.release()
    group.release()


async def test_with_on_an_object_for_asyncio_names_the_client(aclient: holdfast.AsyncClient) -> None:
    lease = await aclient.lock("a").acquire()
    assert lease
    group = await aclient.lock_all(["b"]).acquire()
    assert group
    objects: list[Any] = [aclient, aclient.lock("c"), aclient.semaphore("d", 2), aclient.lock_all(["e"]), lease, group]

    for entered in objects:
        with pytest.raises(holdfast.UsageError, match=rf"this {type(entered).__name__} is .*holdfast\.Client"), entered:
            pytest.fail("the body ran")

    await lease.release()
    await group.release()
    await aclient.close()
