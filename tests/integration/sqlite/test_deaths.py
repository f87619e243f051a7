"""Hazard: a killed process keeps its lock, or its place in the queue, until a ttl of 30 s has passed.

The kernel closes the files of a process that dies for any reason; that wakes the next waiter. The bounds are
far above the measured times (tens of milliseconds) and far below the ttl.
"""

from __future__ import annotations

import pytest

from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import Worker, WorkerPool, eventually, now

PROMPT = 5.0  # seconds


def test_the_first_waiter_acquires_at_once_when_the_holder_dies(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, waiter = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    holder.kill()
    new = waiter.receive()

    report(f"in {(new['acquired'] - killed) * 1e3:.1f} ms after the kill")
    assert new["acquired"] - killed < PROMPT
    assert new["fence"] > old["fence"]


def test_a_dead_holder_does_not_block_a_later_acquire_without_waiting(pool: WorkerPool, store: Store) -> None:
    holder, late = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one", ttl=30)

    holder.kill()
    new = late.call("acquire", lock="one", timeout=0)

    assert new["acquired"] is not None
    assert new["fence"] > old["fence"]


def test_the_second_waiter_acquires_at_the_release_when_the_first_has_died(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, second = _queue(pool, store, observer, 3)

    first.kill()
    leaving = holder.call("release", lock="one")["leaving"]
    entered = second.receive()["acquired"]

    report(f"in {(entered - leaving) * 1e3:.1f} ms after the release")
    assert entered - leaving < PROMPT


def test_the_death_of_a_waiter_in_the_middle_delays_no_other(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, middle, last = _queue(pool, store, observer, 4)

    middle.kill()
    holder.call("release", lock="one")
    first.receive()
    leaving = first.call("release", lock="one")["leaving"]
    entered = last.receive()["acquired"]

    report(f"in {(entered - leaving) * 1e3:.1f} ms after the release")
    assert entered - leaving < PROMPT


def test_holder_and_first_waiter_may_die_together(pool: WorkerPool, store: Store, observer: Observer) -> None:
    holder, first, second, _ = _queue(pool, store, observer, 4)

    killed = now()
    first.kill()
    holder.kill()
    entered = second.receive()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the kills")
    assert entered - killed < PROMPT


def test_a_waiter_that_follows_a_dead_one_is_woken_by_the_death_of_the_holder(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, second = _queue(pool, store, observer, 3)
    last_ticket = "SELECT number, expires FROM tickets ORDER BY number DESC LIMIT 1"
    before = store.query(last_ticket)
    first.kill()
    eventually(lambda: store.query(last_ticket) != before)  # the second has polled, and the holder was alive

    killed = now()
    holder.kill()
    entered = second.receive()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the kill")
    assert entered - killed < 2.0  # it was woken: it would poll about 2.5 s after its last poll


def test_all_but_the_last_of_a_long_queue_may_die_together(pool: WorkerPool, store: Store, observer: Observer) -> None:
    *doomed, last = _queue(pool, store, observer, 8)

    killed = now()
    for worker in reversed(doomed):
        worker.kill()
    entered = last.receive()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the first of 7 kills")
    assert entered - killed < PROMPT


@pytest.mark.parametrize("dead", ["holder", "waiter before it", "both"])
def test_an_asyncio_waiter_is_woken_by_a_death(
    dead: str, pool: WorkerPool, aio_pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, before = _queue(pool, store, observer, 2)
    waiter = aio_pool.start(store.url)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", before.pid, waiter.pid)

    freed = now()
    if dead != "holder":
        before.kill()
    if dead != "waiter before it":
        holder.kill()
    else:
        holder.call("release", lock="one")
    if dead == "holder":
        before.receive()
        before.call("release", lock="one")
    entered = waiter.receive()["acquired"]

    report(f"in {(entered - freed) * 1e3:.1f} ms")
    assert entered - freed < PROMPT


def test_a_waiter_is_woken_by_the_death_of_an_asyncio_holder(
    pool: WorkerPool, aio_pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, waiter = aio_pool.start(store.url), pool.start(store.url)
    holder.call("acquire", lock="one", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    holder.kill()
    entered = waiter.receive()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the kill")
    assert entered - killed < PROMPT


def _queue(pool: WorkerPool, store: Store, observer: Observer, number: int) -> list[Worker]:
    """A holder and its waiters, in order."""
    workers = pool.start_many(number, store.url)
    workers[0].call("acquire", lock="one", ttl=30)
    for end, worker in enumerate(workers[1:], start=2):
        worker.send("acquire", lock="one", ttl=30)
        observer.await_queue("one", *(queued.pid for queued in workers[1:end]))
    return workers
