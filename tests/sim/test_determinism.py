"""The same seed gives the same run: in another process, with other hashes, from its decisions, on one or two cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.sim.run import Plan, run
from holdfast_lab.sim.search import CHUNK, Outcome, search

BACKENDS = ("memory", "sqlite", "redis")
PRINT_HISTORIES = """
import sys
from holdfast_lab.checking.history import to_lines
from holdfast_lab.sim.run import Plan, run
for backend in sys.argv[1:]:
    for seed in range(3):
        ran = run(Plan(backend=backend), seed)
        print(*to_lines(ran.history), ran.decisions, sep="\\n")
"""


def printed(hash_seed: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-c", PRINT_HISTORIES, *BACKENDS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
    ).stdout


def test_two_processes_with_different_hash_seeds_write_the_same_histories() -> None:
    first, second = printed("1"), printed("2")

    assert first.count(b'"event":"Granted"') > 35
    assert first == second


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_does_not_depend_on_earlier_runs(backend: str) -> None:
    plan = Plan(backend=backend)
    first = list(h.to_lines(run(plan, 5).history))

    for seed in range(4):
        run(plan, seed)

    assert list(h.to_lines(run(plan, 5).history)) == first


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_decisions_replay_their_run_to_the_byte(backend: str) -> None:
    plan = Plan(backend=backend)
    for seed in range(5):
        ran = run(plan, seed)

        again = run(plan, decisions=ran.decisions)

        assert list(h.to_lines(again.history)) == list(h.to_lines(ran.history))
        assert (again.decisions, again.steps, again.happened) == (ran.decisions, ran.steps, ran.happened)


def test_no_fault_happens_after_the_last_recorded_decision() -> None:
    ran = run(Plan(backend="memory"), decisions=())

    assert ran.failure is None
    assert not ran.happened
    assert ran.verdict.statistics.grants > 0


def test_the_outcomes_do_not_depend_on_the_number_of_processes() -> None:
    plan, seeds = Plan(backend="memory"), range(100, 100 + CHUNK + 5)  # work for both processes

    alone, together = ([*search(plan, seeds, jobs=jobs)] for jobs in (1, 2))

    assert [outcome.seed for outcome in together] == list(seeds)
    assert together == alone == [Outcome.of(seed, run(plan, seed)) for seed in seeds]
