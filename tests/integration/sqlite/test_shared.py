"""Hazard: a writer and readers hold a lock together, there are more holders than permits, or readers starve a writer.

Every process acquires a reader/writer lock, as a reader or as a writer, and a permit in turn, for some seconds.
"""

from __future__ import annotations

import os
from bisect import bisect
from statistics import median

import pytest

from tests.integration.sqlite.conftest import Store
from tests.support.intervals import assert_no_overlap, most_at_once, quantile, report, turns_of
from tests.support.processes import PATIENCE, WorkerPool, now

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "3"))


@pytest.mark.slow
def test_readers_writers_and_permits_of_8_processes_keep_the_rule_and_none_starves(
    pool: WorkerPool, store: Store
) -> None:
    workers = pool.start_many(8, store.url)
    writers, readers = workers[:3], workers[3:]

    start = now() + 0.3
    for worker in workers:
        worker.send("shared_turns", writes=worker in writers, limit=3, start=start, seconds=SECONDS, hold=0.002)
    answers = {worker.pid: worker.receive(within=SECONDS + PATIENCE) for worker in workers}

    writes = turns_of(answers[worker.pid]["book"] for worker in writers)
    reads = turns_of(answers[worker.pid]["book"] for worker in readers)
    permits = turns_of(answer["permits"] for answer in answers.values())
    assert_no_overlap(writes, reads)
    assert most_at_once(permits) <= 3  # on a busy machine perhaps fewer
    assert most_at_once(reads) > 1
    # Waits are counted in turns of others, not in seconds, because a busy machine slows all processes.
    grants = [turn.acquired for turn in turns_of(answer["book"] for answer in answers.values())]
    waits = [bisect(grants, turn.acquired) - bisect(grants, turn.asked) for turn in writes]
    writer_turns = min(len(answers[worker.pid]["book"]) for worker in writers)
    reader_turns = median(len(answers[worker.pid]["book"]) for worker in readers)
    report(f"{len(writes)} writes, {len(reads)} reads (up to {most_at_once(reads)} at once), {len(permits)} permits")
    report(f"waits of writers in turns: median {median(waits)}, p95 {quantile(waits, 0.95)}, longest {max(waits)}")
    report(f"a writer has at least {writer_turns} turns, the median reader {reader_turns}")
    assert quantile(waits, 0.95) <= 2 * len(workers)
    assert writer_turns >= reader_turns / 4
