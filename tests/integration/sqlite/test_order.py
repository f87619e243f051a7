"""Hazard: a waiter is overtaken, or waits many times longer than the others.

In a fair queue of n, each client waits for one turn of every other. Waits are counted in turns, so the speed of the
machine does not matter.
"""

from __future__ import annotations

from bisect import bisect
from statistics import median

from holdfast.core.tickets import WOKEN_LEASE
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import assert_exclusive, gaps, quantile, report, turns_of
from tests.support.processes import Worker, WorkerPool, now


def test_waiters_acquire_in_the_order_of_the_queue(pool: WorkerPool, store: Store, observer: Observer) -> None:
    holder, *waiters = pool.start_many(7, store.url)
    first = holder.call("acquire", lock="one")
    for number, waiter in enumerate(waiters, start=1):
        waiter.send("acquire", lock="one")
        observer.await_queue("one", *(queued.pid for queued in waiters[:number]))

    holder.call("release", lock="one")
    answers = []
    for waiter in waiters:
        answers.append(waiter.receive())
        waiter.call("release", lock="one")

    fences = [first["fence"], *(answer["fence"] for answer in answers)]
    assert fences == sorted(set(fences))
    assert [answer["acquired"] for answer in answers] == sorted(answer["acquired"] for answer in answers)


def test_an_acquire_without_waiting_does_not_overtake_waiters(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, stopped, other = pool.start_many(3, store.url)
    holder.call("acquire", lock="one")
    stopped.send("acquire", lock="one")
    observer.await_queue("one", stopped.pid)
    stopped.stop()

    holder.call("release", lock="one")
    answer = other.call("acquire", lock="one", timeout=0)

    assert answer["acquired"] is None  # the lock is free, but reserved for the stopped waiter for a second
    stopped.resume()
    assert stopped.receive()["acquired"] is not None


def test_8_processes_that_hold_2_ms_each_acquire_in_a_fair_order(pool: WorkerPool, store: Store) -> None:
    workers = pool.start_many(8, store.url)

    # A process that the machine stalls before its request is overtaken, so one of three runs must keep the bounds.
    runs = (_waits_relative_to_fair_waits(workers) for _ in range(3))

    assert any(p99 <= 1.5 and longest <= 4 and gap < WOKEN_LEASE for p99, longest, gap in runs)


def _waits_relative_to_fair_waits(workers: list[Worker]) -> tuple[float, float, float]:
    """The p99 and the longest wait as multiples of those in a fair queue, and the longest gap, in 5 s."""
    start = now() + 0.3
    for worker in workers:
        worker.send("turns", lock="one", start=start, seconds=5.0, hold=0.002)
    reports = [worker.receive()["turns"] for worker in workers]

    turns = turns_of(reports)
    assert_exclusive(turns)
    grants = [turn.acquired for turn in turns]
    waits = [number - bisect(grants, turn.asked) for number, turn in enumerate(turns)]
    p99, longest = quantile(waits, 0.99) / len(workers), max(waits) / len(workers)
    share = sum(turn.leaving - turn.acquired for turn in turns) / (turns[-1].leaving - turns[0].acquired)
    one_way = workers[0].call("ping_pong", times=2000)["one_way"]
    gap = median(gaps(turns))
    report(f"median gap {gap * 1e6:.0f} µs; a byte through a pipe {one_way * 1e6:.0f} µs; held {share:.0%} of the time")
    report(f"{len(turns)} turns, {min(map(len, reports))} to {max(map(len, reports))} for each process")
    report(f"p99 {p99:.2f} and longest {longest:.2f} times what is fair")
    return p99, longest, max(gaps(turns))
