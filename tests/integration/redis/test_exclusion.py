"""Hazard: two processes hold a lock at the same time, or fences do not follow the order of the leases.

The workers report intervals from just after each acquire to just before each release, on a common clock.
"""

from __future__ import annotations

import pytest

from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean
from tests.support.intervals import (
    assert_exclusive,
    assert_no_overlap,
    gaps,
    most_at_once,
    quantile,
    report,
    turns_of,
)
from tests.support.processes import WorkerPool, now
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

SOON = 0.3  # seconds: enough for all workers to receive the start time


@pytest.mark.parametrize(("method", "times"), [("queue", 40), ("setnx", 15)])
def test_8_processes_with_one_lock_exclude_each_other(
    method: str, times: int, pool: WorkerPool, server: Server
) -> None:
    workers = pool.start_many(8, f"{server.url}?method={method}")

    start = now() + SOON
    for worker in workers:
        worker.send("turns", lock="one", start=start, times=times)
    turns = turns_of(worker.receive(within=100)["turns"] for worker in workers)

    assert len(turns) == 8 * times
    assert_exclusive(turns)
    seconds = turns[-1].leaving - turns[0].acquired
    report(f"{len(turns)} turns in {seconds:.1f} s; median gap {quantile(gaps(turns), 0.5) * 1e6:.0f} µs")
    for worker in workers:
        worker.release()
    assert_free_and_clean(server, "one")


def test_processes_on_a_cluster_exclude_each_other(pool: WorkerPool, shared_cluster: Cluster) -> None:
    workers = pool.start_many(4, shared_cluster.url)

    start = now() + SOON
    for worker in workers:
        worker.send("turns", lock="exclusive", start=start, times=50)
    turns = turns_of(worker.receive(within=60)["turns"] for worker in workers)

    assert len(turns) == 200
    assert_exclusive(turns)


def test_threads_that_share_a_lock_object_exclude_each_other_and_those_of_other_processes(
    pool: WorkerPool, server: Server
) -> None:
    workers = pool.start_many(3, server.url)

    start = now() + SOON
    for worker in workers:
        worker.send("thread_turns", lock="one", threads=4, start=start, times=20)
    reports = [thread for worker in workers for thread in worker.receive(within=60)["turns"]]

    assert [len(thread) for thread in reports] == [20] * 12
    assert_exclusive(turns_of(reports))


@pytest.mark.slow
def test_readers_writers_and_permits_of_8_processes_keep_their_rules(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    workers = pool.start_many(8, server.url)
    writers, readers = workers[:3], workers[3:]

    start = now() + SOON
    for worker in workers:
        worker.send("shared_turns", writes=worker in writers, limit=3, start=start, seconds=3.0, hold=0.002)
    answers = {worker.pid: worker.receive(within=60) for worker in workers}

    writes = turns_of(answers[worker.pid]["book"] for worker in writers)
    reads = turns_of(answers[worker.pid]["book"] for worker in readers)
    permits = turns_of(answer["permits"] for answer in answers.values())
    assert_no_overlap(writes, reads)
    assert most_at_once(permits) == 3
    assert most_at_once(reads) > 1
    assert min(len(answers[worker.pid]["book"]) for worker in writers) >= 3
