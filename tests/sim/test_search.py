"""A failing seed is not found, not shrunk, or not repeated by the printed command."""

from __future__ import annotations

import functools
import shlex
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.core.engine import Engine
from holdfast.core.locks import BaseLock
from holdfast.core.ports import Caller
from holdfast_lab.cli import searches
from holdfast_lab.sim import faults, replay
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.run import Plan, Run, run
from holdfast_lab.sim.search import Totals, search
from holdfast_lab.sim.shrink import Shrunk, shrink
from tests.sim.broken import FROM_THE_REPLY
from tests.support.commands import simulate

SEEDS = range(25)
KINDS = ("slow",)


class Bug(NamedTuple):
    plan: Plan
    failing: Run
    shrunk: Shrunk


@pytest.fixture(scope="module")
def bug() -> Bug:
    plan = FROM_THE_REPLY.apply(Plan(faults=faults.only(faults.ALL, frozenset(KINDS)), enable=1.0))
    failing = next(ran for ran in (run(plan, seed) for seed in SEEDS) if ran.failure is not None)
    return Bug(plan, failing, shrink(plan, failing, runs=900))  # a complete shrink takes twice as long


def test_search_finds_the_same_seeds_with_one_process_and_with_two(bug: Bug) -> None:
    alone, together = ([*search(bug.plan, SEEDS, jobs=jobs)] for jobs in (1, 2))

    assert alone == together
    assert bug.failing.seed == next(outcome.seed for outcome in alone if outcome.failure is not None)


def test_totals_are_the_sums_of_all_outcomes(bug: Bug) -> None:
    totals = Totals()
    outcomes = [*search(bug.plan, SEEDS, jobs=1)]
    for outcome in outcomes:
        totals.add(outcome)

    assert totals.worlds == len(SEEDS)
    assert totals.steps == sum(outcome.steps for outcome in outcomes)
    assert totals.happened["slow"] == sum(outcome.happened["slow"] for outcome in outcomes) > 0
    assert totals.tested["mutual exclusion"] == len(SEEDS)
    assert [outcome.seed for outcome in totals.failing] == [
        outcome.seed for outcome in outcomes if outcome.failure is not None
    ]


def test_a_search_that_is_ended_early_leaves_no_process() -> None:
    before = threading.active_count()
    outcomes = search(Plan(backend="memory"), range(10_000), jobs=2)
    first = [next(outcomes).seed for _ in range(30)]
    outcomes.close()

    assert first == list(range(30))
    assert threading.active_count() == before


def test_a_plan_that_cannot_be_pickled_is_searched_in_this_process() -> None:
    class Local(Engine[SimLease]):
        """No other process can import this."""

    outcomes = [*search(Plan(backend="memory", engine=Local), range(3), jobs=2)]

    assert [outcome.seed for outcome in outcomes] == [0, 1, 2]


def test_a_shrunk_run_is_simpler_and_breaks_the_same_promise(bug: Bug) -> None:
    shrunk = bug.shrunk

    assert shrunk.run.failure == bug.failing.failure
    assert len(shrunk.decisions) < len(bug.failing.decisions) / 2
    assert len(shrunk.run.history) < len(bug.failing.history)
    assert sum(shrunk.run.happened.values()) <= 4


def test_a_shrunk_run_replays_and_shrinking_is_repeatable(bug: Bug) -> None:
    shrunk = bug.shrunk

    assert run(shrunk.plan, decisions=shrunk.decisions).history == shrunk.run.history
    first, again = (shrink(bug.plan, bug.failing, runs=200) for _ in range(2))
    assert (again.plan, again.decisions, again.runs) == (first.plan, first.decisions, first.runs)


def test_shrinking_keeps_its_budget_and_reports_progress(bug: Bug) -> None:
    reported: list[int] = []

    shrunk = shrink(bug.plan, bug.failing, runs=40, progress=lambda runs, _: reported.append(runs))

    assert reported == list(range(1, 41))
    assert shrunk.run.failure == bug.failing.failure


def test_the_first_step_of_shrinking_changes_nothing_but_the_plan(bug: Bug) -> None:
    shrunk = shrink(bug.plan, bug.failing, runs=0)

    assert shrunk.plan.enable == 1.0
    assert faults.enabled(shrunk.plan.faults) == faults.enabled(bug.failing.faults)
    assert run(shrunk.plan, decisions=shrunk.decisions).history == bug.failing.history


def test_a_run_without_failure_cannot_be_shrunk() -> None:
    plan = Plan(backend="memory", faults=faults.CALM)

    with pytest.raises(ValueError, match="only a run that fails"):
        shrink(plan, run(plan, 0))


def test_an_error_that_ends_a_world_is_a_failure_and_is_kept() -> None:
    class Raises(Engine[SimLease]):
        def _publish(self, lease: SimLease, lock: BaseLock[SimLease], owner: Caller) -> None:
            raise ZeroDivisionError

    ran = run(Plan(backend="memory", engine=Raises), 0)

    assert ran.failure == "ZeroDivisionError"
    assert isinstance(ran.error, ZeroDivisionError)
    assert shrink(Plan(backend="memory", engine=Raises), ran).plan.workload.clients == 1


def test_a_replay_is_equal_after_it_was_saved_and_loaded(bug: Bug) -> None:
    saved = replay.Replay(bug.shrunk.plan, bug.shrunk.decisions, FROM_THE_REPLY.name)

    again = replay.from_text(replay.to_text(saved))

    assert (list(again.decisions), again.mutant) == (list(saved.decisions), saved.mutant)
    assert FROM_THE_REPLY.apply(again.plan) == saved.plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"backend": "papyrus"}', "not json"])
def test_a_text_that_is_not_a_replay_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a saved run"):
        replay.from_text(text)


def test_the_printed_command_repeats_the_failing_run(bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shortly = functools.partial(shrink, runs=100)  # a complete shrink takes seconds
    monkeypatch.setattr(searches, "shrink", shortly)
    words = ["--json", "--mutant", FROM_THE_REPLY.name]
    seeds = str((bug.failing.seed or 0) + 1)  # this world is the last
    searched = simulate(*words, "--faults", ",".join(KINDS), "--seeds", seeds, "--save", str(tmp_path / "a.replay"))
    first = searched.json["first"]

    again = shlex.split(first["again"])
    assert again[:2] == ["holdfast", "simulate"]
    replayed = simulate(*again[2:], "--json")
    from_file = simulate(*words, "--replay", str(tmp_path / "a.replay"))

    assert (searched.status, replayed.status, from_file.status) == (1, 1, 1)
    assert first["decisions"] == list(shortly(bug.plan, bug.failing).decisions)
    assert again[-2:] == ["--seed", str(bug.failing.seed)]
    for name in ("failure", "at", "message", "events", "decisions"):
        assert replayed.json[name] == first[name]
    for name in ("failure", "at", "message", "events"):
        assert from_file.json[name] == first[name]
