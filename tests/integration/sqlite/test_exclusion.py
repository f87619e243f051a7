"""Hazard: two processes or threads hold the lock at the same time, or fences do not follow the order of the leases.

The workers report intervals from just after each acquire to just before each release, on the clock that they share.
"""

from __future__ import annotations

import pytest

from tests.integration.sqlite.conftest import Store
from tests.support.intervals import assert_exclusive, gaps, quantile, report, turns_of
from tests.support.processes import WorkerPool, now

SOON = 0.3  # seconds: enough for all workers to receive the start time


@pytest.mark.slow
def test_8_processes_that_acquire_one_lock_80_times_each_never_overlap(pool: WorkerPool, store: Store) -> None:
    workers = pool.start_many(8, store.url)

    start = now() + SOON
    for worker in workers:
        worker.send("turns", lock="one", start=start, times=80)
    turns = turns_of(worker.receive(within=110)["turns"] for worker in workers)

    assert len(turns) == 8 * 80
    assert_exclusive(turns)
    seconds = turns[-1].leaving - turns[0].acquired
    report(f"{len(turns)} turns in {seconds:.1f} s; median gap {quantile(gaps(turns), 0.5) * 1e6:.0f} µs")


def test_threads_with_one_lock_object_exclude_each_other_and_other_processes(pool: WorkerPool, store: Store) -> None:
    workers = pool.start_many(4, store.url)

    start = now() + SOON
    for worker in workers:
        worker.send("thread_turns", lock="one", threads=4, start=start, times=50)
    reports = [thread for worker in workers for thread in worker.receive(within=60)["turns"]]

    assert [len(thread) for thread in reports] == [50] * 16
    turns = turns_of(reports)
    assert_exclusive(turns)
    seconds = turns[-1].leaving - turns[0].acquired
    report(f"{len(turns)} turns in {seconds:.1f} s; longest wait {max(turn.waited for turn in turns):.3f} s")
