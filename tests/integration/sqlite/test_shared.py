"""Hazard: a writer among readers, more holders than permits, or a writer who never gets in for all the readers.

Every process takes a reader/writer lock (as a reader, or as a writer) and a permit in turn, for some time.
"""

from __future__ import annotations

import os
from statistics import mean

import pytest

from tests.integration.sqlite.conftest import Store
from tests.support.intervals import assert_no_overlap, most_at_once, report, turns_of
from tests.support.processes import PATIENCE, Crew, now

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "20"))


@pytest.mark.slow
def test_readers_writers_and_permits_of_16_processes_keep_their_rules_and_nobody_starves(
    crew: Crew, store: Store
) -> None:
    workers = crew.start_many(16, store.url)
    writers, readers = workers[:5], workers[5:]

    start = now() + 0.3
    for worker in workers:
        worker.tell("shared_turns", writes=worker in writers, limit=3, start=start, seconds=SECONDS, hold=0.002)
    answers = {worker.pid: worker.hear(within=SECONDS + PATIENCE) for worker in workers}

    writes = turns_of(answers[worker.pid]["book"] for worker in writers)
    reads = turns_of(answers[worker.pid]["book"] for worker in readers)
    permits = turns_of(answer["permits"] for answer in answers.values())
    assert_no_overlap(writes, reads)
    assert most_at_once(permits) == 3
    assert most_at_once(reads) > 1
    mean_wait = mean(turn.waited for turn in writes)
    longest = max(turn.waited for turn in writes)
    least = min(len(answers[worker.pid]["book"]) for worker in writers)
    report(f"{len(writes)} writes, {len(reads)} reads (up to {most_at_once(reads)} at once), {len(permits)} permits")
    report(f"writers waited {mean_wait * 1e3:.1f} ms on average, {longest * 1e3:.1f} ms at most; least turns {least}")
    assert least >= 3
    assert longest < 10 * mean_wait
