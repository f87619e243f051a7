"""Hazard: two leaders in one term, a term that is not greater than the one before, an observer with a wrong leader.

Leaders are killed with -9 and stopped for longer than their ttl. A contest takes HOLDFAST_ELECTION_SECONDS, by default
a few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.elections import runner
from tests.support.elections.runner import Disruption, Observation, Outcome, Record
from tests.support.etcd import shared as etcd
from tests.support.intervals import Turn, report
from tests.support.processes import WorkerPool
from tests.support.redis import shared as redis

SECONDS = float(os.environ.get("HOLDFAST_ELECTION_SECONDS", "4"))


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(runner.PROCESS) as pool:
        yield pool


@pytest.mark.timeout(120 + 2 * SECONDS)
@pytest.mark.parametrize("fresh_url", [etcd.fresh_url, redis.fresh_url], ids=["etcd", "redis"])
def test_never_two_leaders_in_one_term_while_leaders_are_killed_and_paused(
    fresh_url: Callable[[], str], pool: WorkerPool, tmp_path: Path
) -> None:
    outcome = runner.run_election(fresh_url(), pool, tmp_path, SECONDS)

    outcome.check()
    report(outcome.figures())


def _record(*turns: Turn, pid: int = 1, lost: tuple[int, ...] = (), seen: tuple[Observation, ...] = ()) -> Record:
    return Record(pid, turns, lost, seen)


FINE = (Observation(0, 0, 0.0), Observation(5, 1, 1.1), Observation(6, 2, 3.1))


@pytest.mark.parametrize(
    ("wrong", "records"),
    [
        ("overlap", [_record(Turn(1, 1, 3, 5)), _record(Turn(2, 2, 4, 6), pid=2)]),
        ("follows", [_record(Turn(1, 1, 2, 6)), _record(Turn(3, 3, 4, 5), pid=2)]),
        ("follows", [_record(Turn(1, 1, 2, 5)), _record(Turn(3, 3, 4, 5), pid=2)]),
        ("went back", [_record(seen=FINE[::-1], pid=3)]),
        ("Observation", [_record(Turn(1, 1, 2, 5), pid=9), _record(seen=FINE, pid=3)]),
        ("not told", [_record(Turn(1, 1, 2, 5)), _record(Turn(3, 3, 4, 6), pid=2), _record(seen=FINE, pid=3)]),
        ("missed", [_record(Turn(1, 1, 2, 5), lost=(5,)), _record(seen=FINE[2:], pid=3)]),
    ],
)
def test_a_contest_with_an_error_is_detected(wrong: str, records: list[Record]) -> None:
    with pytest.raises(AssertionError, match=wrong):
        Outcome(records, [Disruption("pause", 5, 1.5)], 5.0).check()


def test_a_contest_without_errors_passes() -> None:
    records = [_record(Turn(1, 1, 2, 5), lost=(5,)), _record(Turn(3, 3, 4, 6), pid=2), _record(seen=FINE, pid=3)]

    Outcome(records, [Disruption("pause", 5, 1.5)], 5.0).check()
