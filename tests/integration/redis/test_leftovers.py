"""Hazard: keys that never expire remain on the server after many acquires and after the deaths of holders and waiters.

Only the watermark of the fences may remain, and the index while locks are in use.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import (
    acquiring,
    assert_free_and_clean,
    await_waiters,
    keys_without_ttl,
    lock_keys,
    take,
)
from tests.support.processes import WorkerPool, eventually, now
from tests.support.redis.servers import Server


def test_only_the_watermark_of_the_fences_remains_after_use(server: Server, open_client: OpenClient) -> None:
    client, other, third = (open_client(server.url) for _ in range(3))

    for number in range(10):
        with client.lock(f"lock-{number}"):
            assert other.lock(f"lock-{number}").acquire(timeout=0.01) is None
        with client.rwlock(f"book-{number}").read(), other.rwlock(f"book-{number}").read():
            assert third.rwlock(f"book-{number}").write().acquire(timeout=0.01) is None
        with client.semaphore(f"permit-{number}", limit=2), other.semaphore(f"permit-{number}", limit=2):
            pass

    assert server.all_keys() == {"holdfast:{}:fence"}


@pytest.mark.parametrize("method", ["setnx", "getset"])
def test_the_plain_methods_leave_no_keys(method: str, server: Server, open_client: OpenClient) -> None:
    client, other = (open_client(f"{server.url}?method={method}") for _ in range(2))

    for number in range(10):
        with client.lock(f"lock-{number}"):
            assert other.lock(f"lock-{number}").acquire(timeout=0.01) is None

    assert server.all_keys() == set()


@pytest.mark.slow
def test_processes_killed_at_any_point_leave_no_key_without_a_ttl(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    observer = open_client(server.url)
    queued, busy = pool.start_many(5, server.url), pool.start_many(4, server.url)
    queued[0].call("acquire", lock="one", ttl=5)
    for waiter_count, worker in enumerate(queued[1:], start=1):
        worker.send("acquire", lock="one", ttl=5)
        await_waiters(observer, "one", waiter_count)
    start = now()
    for worker in busy:
        worker.send("turns", lock="two", start=start, seconds=60.0, hold=0.001)
    shared = [take(observer.rwlock("book", ttl=5).read()), take(observer.semaphore("permits", limit=3, ttl=5))]
    assert keys_without_ttl(server) == set()

    for worker in (*busy, *queued):
        time.sleep(0.1)
        worker.kill()

    assert keys_without_ttl(server) == set()
    for holder in observer.inspect("two").holders:  # its ttl is 30 s
        assert holder.fence is not None
        assert observer.break_lock("two", holder.fence)
    for lock in ("one", "two"):  # the waiter leases of dead clients expire together, not one after the other
        take(observer.lock(lock), timeout=25).release()
    for lease in shared:
        lease.release()
    # The hash of waiters keeps the list of silent clients for a while.
    eventually(lambda: {key.rpartition(":")[2] for key in lock_keys(server)} <= {"waiters"})
    assert keys_without_ttl(server) == set()


async def test_cancelled_tasks_and_timed_out_waits_leave_no_keys(server: Server) -> None:
    async with (
        holdfast.AsyncClient(server.url) as holder,
        holdfast.AsyncClient(server.url, local_handover="no") as client,
        holder.lock("one"),
    ):
        tasks = [asyncio.create_task(client.lock("one").acquire(timeout=30)) for _ in range(100)]
        while len((await holder.inspect("one")).waiters) < 100:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await client.lock("one").acquire(timeout=0.05) is None
        while (await holder.inspect("one")).waiters:
            await asyncio.sleep(0.01)
    # The hash of waiters keeps the withdrawn tickets for a while, in case an earlier request still arrives.
    assert len(lock_keys(server)) <= 1
    assert_free_and_clean(server, "one")


def in_memory(client: holdfast.Client) -> int:
    """The number of tickets in the memory of the backend of this client."""
    backend: Any = client._engine.backend
    subscriptions = backend._subscriber.channels.values()
    return len(backend._subscriber.wakeups.expected()) + sum(len(channel.nonces) for channel in subscriptions)


def test_an_acquire_that_is_refused_leaves_nothing_in_memory(server: Server, open_client: OpenClient) -> None:
    holder, client = open_client(server.url), open_client(server.url)
    with holder.lock("busy"), holder.semaphore("two", 2):
        pending = acquiring(client.lock("busy"))  # subscribes this client
        await_waiters(holder, "busy", 1)
        eventually(lambda: len(server.subscribers()) == 1)
        server.call("LPUSH", "holdfast:list", "a")

        def acquire_refused() -> None:
            with pytest.raises(holdfast.LimitConflict):
                client.semaphore("two", 3).acquire(timeout=1)
            with pytest.raises(holdfast.NameConflict):
                client.lock("list").acquire(timeout=1)
            server.call("CONFIG", "SET", "maxmemory", 1)
            try:
                with pytest.raises(holdfast.BackendUnavailable):
                    client.lock("free").acquire(timeout=1)
            finally:
                server.call("CONFIG", "SET", "maxmemory", 0)

        acquire_refused()
        before = in_memory(client)
        for _ in range(3):
            acquire_refused()

        assert in_memory(client) == before
    pending.result().release()
