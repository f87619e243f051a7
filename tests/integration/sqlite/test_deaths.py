"""Hazard: a killed process keeps its lock, or its place in the queue, until a ttl of 30 s has passed.

The kernel closes the files of a process when it dies for any reason, which wakes the next waiter. The bounds are far
above the measured times (tens of milliseconds) and far below the ttl.
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


def test_an_acquire_without_waiting_succeeds_when_the_holder_has_died(pool: WorkerPool, store: Store) -> None:
    holder, other = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one", ttl=30)

    holder.kill()
    new = other.call("acquire", lock="one", timeout=0)

    assert new["acquired"] is not None
    assert new["fence"] > old["fence"]


def test_the_second_waiter_acquires_at_the_release_when_the_first_has_died(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, second = _queue(pool, store, observer, 3)

    first.kill()
    released = holder.call("release", lock="one")["leaving"]
    acquired = second.receive()["acquired"]

    report(f"in {(acquired - released) * 1e3:.1f} ms after the release")
    assert acquired - released < PROMPT


def test_the_last_waiter_acquires_at_the_release_when_a_waiter_before_it_has_died(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, middle, last = _queue(pool, store, observer, 4)

    middle.kill()
    holder.call("release", lock="one")
    first.receive()
    released = first.call("release", lock="one")["leaving"]
    acquired = last.receive()["acquired"]

    report(f"in {(acquired - released) * 1e3:.1f} ms after the release")
    assert acquired - released < PROMPT


def test_the_second_waiter_acquires_at_once_when_holder_and_first_waiter_die(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, second, _ = _queue(pool, store, observer, 4)

    killed = now()
    first.kill()
    holder.kill()
    acquired = second.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the kills")
    assert acquired - killed < PROMPT


def test_a_waiter_behind_a_dead_waiter_is_woken_by_the_death_of_the_holder(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, first, second = _queue(pool, store, observer, 3)
    last_ticket = "SELECT number, expires FROM tickets ORDER BY number DESC LIMIT 1"
    before = store.query(last_ticket)
    first.kill()
    eventually(lambda: store.query(last_ticket) != before)  # the second waiter has polled while the holder was alive

    killed = now()
    holder.kill()
    acquired = second.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the kill")
    assert acquired - killed < 2.0  # without the wake-up it would poll within POLL_INTERVAL, which is 1 s


def test_the_last_waiter_acquires_at_once_when_all_others_die(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    *others, last = _queue(pool, store, observer, 8)

    killed = now()
    for worker in reversed(others):
        worker.kill()
    acquired = last.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the first of 7 kills")
    assert acquired - killed < PROMPT


@pytest.mark.parametrize("dead", ["holder", "waiter before it", "both"])
def test_an_asyncio_waiter_is_woken_by_a_death(
    dead: str, pool: WorkerPool, aio_pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, before = _queue(pool, store, observer, 2)
    waiter = aio_pool.start(store.url)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", before.pid, waiter.pid)

    began = now()
    if dead != "holder":
        before.kill()
    if dead != "waiter before it":
        holder.kill()
    else:
        holder.call("release", lock="one")
    if dead == "holder":
        before.receive()
        before.call("release", lock="one")
    acquired = waiter.receive()["acquired"]

    report(f"in {(acquired - began) * 1e3:.1f} ms")
    assert acquired - began < PROMPT


def test_a_waiter_is_woken_by_the_death_of_an_asyncio_holder(
    pool: WorkerPool, aio_pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, waiter = aio_pool.start(store.url), pool.start(store.url)
    holder.call("acquire", lock="one", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    holder.kill()
    acquired = waiter.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the kill")
    assert acquired - killed < PROMPT


def _queue(pool: WorkerPool, store: Store, observer: Observer, number: int) -> list[Worker]:
    """A holder and its waiters, in order."""
    workers = pool.start_many(number, store.url)
    workers[0].call("acquire", lock="one", ttl=30)
    for end, worker in enumerate(workers[1:], start=2):
        worker.send("acquire", lock="one", ttl=30)
        observer.await_queue("one", *(queued.pid for queued in workers[1:end]))
    return workers
