"""An exhaustive search is not complete, or prunes states that matter."""

from __future__ import annotations

import pytest

from holdfast_lab.sim import exhaustive
from holdfast_lab.sim.exhaustive import DELAY, Fate, Search, Size, replay, search_all
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import Plan
from tests.sim.broken import OLD_GRANTS

# For `make test-all`. The worlds of test_worlds.py have these faults on all backends, and `make sim` searches them all.
EXTRA = {backend: pytest.param(backend, marks=pytest.mark.extra) for backend in ("sqlite", "redis", "postgresql")}


class AlwaysEmpty(set[bytes]):
    """Contains nothing, so that no state is pruned."""

    def __contains__(self, _: object) -> bool:
        return False


def search_without_pruning(plan: Plan, size: Size) -> Search:
    searching = exhaustive._DepthFirstSearch(plan, size, None)
    searching._seen = AlwaysEmpty()
    return searching.result()


@pytest.mark.parametrize("backend", ["memory", "postgresql", EXTRA["sqlite"], EXTRA["redis"]])
def test_one_fault_in_a_world_of_two_clients_breaks_no_promise(backend: str) -> None:
    searched = search_all(Plan(backend=backend), Size(faults=1))

    assert searched.is_complete
    assert not searched.failures
    assert searched.runs > 100
    assert searched.pruned > 10


@pytest.mark.parametrize("backend", ["memory", "sqlite", EXTRA["redis"], EXTRA["postgresql"]])
def test_reordering_close_actions_breaks_no_promise(backend: str) -> None:
    searched = search_all(Plan(backend=backend), Size(faults=0, window=2 * DELAY))

    assert searched.is_complete
    assert not searched.failures
    assert searched.runs > 100


# All fates take ten times as long.
SOME_FATES = (Fate.DONE, Fate.UNANSWERED, Fate.ANSWERED_LATE)


def test_a_bug_that_needs_two_faults_is_found_and_replayed() -> None:
    plan, size = OLD_GRANTS.apply(Plan()), Size(fates=SOME_FATES)

    assert not search_all(plan, Size(faults=1)).failures
    searched = search_all(plan, size)

    assert searched.is_complete
    failing = next(run for run in searched.failures if run.failure == "mutual exclusion")
    assert failing.happened == {"unanswered": 1, "answered_late": 1}
    assert replay(plan, size, failing.script).history == failing.history


def test_pruning_saves_runs_and_finds_the_same_bugs() -> None:
    plan, size = MUTANTS["late-reply-is-a-grant"].apply(Plan()), Size(faults=1, fates=(Fate.DONE, Fate.ANSWERED_LATE))

    pruned, full = search_all(plan, size), search_without_pruning(plan, size)

    assert pruned.is_complete
    assert full.is_complete
    assert pruned.runs < full.runs
    assert pruned.failures
    assert {run.failure for run in pruned.failures} == {run.failure for run in full.failures}


def test_a_search_that_ends_early_is_not_complete() -> None:
    searched = search_all(Plan(backend="memory"), Size(runs_max=20))

    assert searched.runs == 20
    assert not searched.is_complete
    assert not search_all(Plan(backend="memory"), progress=lambda runs, _: runs < 5).is_complete
