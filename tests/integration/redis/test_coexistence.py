"""Hazard: programs with redis-py's Lock or a bare SET NX PX and programs with holdfast hold the same lock at the same
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis
import redis_lock  # type: ignore[import-untyped]

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, await_waiters, in_background, take
from tests.support.pages import blocks
from tests.support.processes import PATIENCE, WorkerPool, eventually, now
from tests.support.redis.servers import Server

METHODS = ["queue", "setnx"]
TTLS = pytest.mark.parametrize("their_ttl", [10, None], ids=["with a ttl", "without a ttl"])


@pytest.fixture
def theirs(server: Server) -> Iterator[Any]:
    client = redis.Redis(port=server.port)
    yield client
    client.close()


@pytest.fixture(params=METHODS)
def ours(request: pytest.FixtureRequest, server: Server, open_client: OpenClient) -> holdfast.Client:
    return open_client(f"{server.url}?prefix=&method={request.param}")


@TTLS
def test_redis_py_s_lock_blocks_holdfast_until_it_is_released(
    their_ttl: float | None, theirs: Any, ours: holdfast.Client
) -> None:
    lock = theirs.lock("one", timeout=their_ttl)
    assert lock.acquire()

    busy = ours.lock("one").acquire(timeout=0)
    pending = acquiring(ours.lock("one"))
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.3)
    lock.release()

    assert busy is None
    pending.result(timeout=PATIENCE).release()
    assert lock.acquire(blocking=False)
    lock.release()


@TTLS
def test_holdfast_blocks_redis_py_s_lock_until_it_is_released(
    their_ttl: float | None, theirs: Any, ours: holdfast.Client
) -> None:
    lease = take(ours.lock("one"))
    lock = theirs.lock("one", timeout=their_ttl, thread_local=False)

    busy = lock.acquire(blocking=False)
    pending = in_background(lambda: lock.acquire(blocking_timeout=PATIENCE))
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.3)
    lease.release()

    assert not busy
    assert pending.result(timeout=PATIENCE)
    assert ours.lock("one").acquire(timeout=0) is None
    lock.release()
    take(ours.lock("one"), timeout=0).release()


def test_a_bare_set_nx_px_and_holdfast_exclude_each_other(server: Server, ours: holdfast.Client) -> None:
    lease = take(ours.lock("one"))
    refused = server.call("SET", "one", "token", "NX", "PX", 1500)
    lease.release()
    granted = server.call("SET", "one", "token", "NX", "PX", 1500)
    busy = ours.lock("one").acquire(timeout=0)
    after = take(ours.lock("one"), timeout=20)  # its expiry sends no notification, so holdfast polls

    assert (refused, granted, busy) == (None, "OK", None)
    assert after.fence > lease.fence
    after.release()


def test_holdfast_does_not_change_a_foreign_lock(server: Server, ours: holdfast.Client) -> None:
    server.call("SET", "one", "token", "NX", "PX", 30000)

    assert ours.lock("one").acquire(timeout=0.3) is None
    with pytest.raises(holdfast.HoldfastError):
        lease = take(ours.lock("two"))
        server.call("SET", "two", "token")
        lease.release()

    assert server.call("GET", "one") == "token"
    assert server.call("GET", "two") == "token"


def test_waiters_keep_their_order_behind_a_foreign_holder(server: Server, open_client: OpenClient, theirs: Any) -> None:
    ours = open_client(f"{server.url}?prefix=")
    lock = theirs.lock("one", timeout=30)
    assert lock.acquire()
    order: list[int] = []

    def visit(number: int) -> None:
        with ours.lock("one", timeout=PATIENCE):
            order.append(number)

    visits = []
    for number in range(4):
        visits.append(in_background(lambda number=number: visit(number)))  # type: ignore[misc]
        await_waiters(ours, "one", number + 1)
    lock.release()
    for done in visits:
        done.result(timeout=PATIENCE)

    assert order == [0, 1, 2, 3]


def test_readers_and_permits_and_redis_py_s_lock_exclude_each_other(
    server: Server, open_client: OpenClient, theirs: Any
) -> None:
    ours, also_ours = (open_client(f"{server.url}?prefix=") for _ in range(2))
    lock = theirs.lock("book", timeout=30, thread_local=False)

    readers = [take(client.rwlock("book").read(), timeout=0) for client in (ours, also_ours)]
    while_read = lock.acquire(blocking=False)
    readers[0].release()
    while_still_read = lock.acquire(blocking=False)
    readers[1].release()
    taken = lock.acquire(blocking=False)
    reading = ours.rwlock("book").read().acquire(timeout=0)
    lock.release()

    assert (while_read, while_still_read, taken, reading) == (False, False, True, None)
    permit = take(ours.semaphore("permits", limit=3), timeout=0)
    assert not theirs.lock("permits", timeout=30).acquire(blocking=False)
    permit.release()


@pytest.mark.parametrize("method", METHODS)
def test_processes_with_holdfast_and_threads_with_redis_py_exclude_each_other(
    method: str, pool: WorkerPool, server: Server
) -> None:
    workers = pool.start_many(3, f"{server.url}?prefix=&method={method}")
    start, seconds = now() + 0.3, 2.0
    for worker in workers:
        worker.send("turns", lock="one", start=start, seconds=seconds, hold=0.002)

    def their_turns() -> list[tuple[float, float]]:
        turns = []
        client = redis.Redis(port=server.port)
        lock = client.lock("one", timeout=30, sleep=0.005, thread_local=False)
        time.sleep(max(0.0, start - now()))
        while now() < start + seconds:
            if lock.acquire(blocking_timeout=30):
                acquired = now()
                time.sleep(0.002)
                turns.append((acquired, now()))
                lock.release()
        client.close()
        return turns

    their_futures = [in_background(their_turns) for _ in range(2)]
    turns = [turn for future in their_futures for turn in future.result(timeout=60)]
    counts = [len(turns)]
    for worker in workers:
        own_turns = worker.receive(within=60)["turns"]
        turns += [(acquired, released) for _, acquired, released, _ in own_turns]
        counts.append(len(own_turns))

    turns.sort()
    for (_, released), (acquired, _) in pairwise(turns):
        assert released < acquired
    assert min(counts) > 0, counts


def test_python_redis_lock_blocks_holdfast_until_it_is_released(
    server: Server, theirs: Any, open_client: OpenClient
) -> None:
    ours = open_client(f"{server.url}?compat=python-redis-lock")
    lock = redis_lock.Lock(theirs, "one", expire=30)
    assert lock.acquire()

    busy = ours.lock("one").acquire(timeout=0)
    pending = acquiring(ours.lock("one"))
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.3)
    lock.release()

    assert busy is None
    pending.result(timeout=PATIENCE).release()


def test_holdfast_blocks_python_redis_lock_and_wakes_it_at_the_release(
    server: Server, theirs: Any, open_client: OpenClient
) -> None:
    ours = open_client(f"{server.url}?compat=python-redis-lock")
    lease = take(ours.lock("one"))
    lock = redis_lock.Lock(theirs, "one", expire=30)

    busy = lock.acquire(blocking=False)
    pending = in_background(lambda: lock.acquire(timeout=20))
    eventually(lambda: any(client["cmd"] == "blpop" for client in server.clients()))
    lease.release()

    assert not busy
    assert pending.result(timeout=PATIENCE)
    assert ours.lock("one").acquire(timeout=0) is None
    lock.release()


def test_the_programs_of_the_page_on_migrating_run(server: Server, theirs: Any) -> None:
    examples = [block for block in blocks("migrating.md") if block.run_by.endswith("test_coexistence.py")]
    assert examples

    for block in examples:
        code = block.code.replace("redis://host/0", server.url)
        names = {"holdfast": holdfast, "redis_client": theirs, "redis_lock": redis_lock}
        exec(compile(code, block.location, "exec"), names)  # noqa: S102  (the examples are ours)
