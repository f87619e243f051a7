"""A search that says it has tried everything and has not: it must be complete, and prune nothing that matters."""

from __future__ import annotations

import pytest

from holdfast.sim import exhaustive
from holdfast.sim.exhaustive import DELAY, Fate, Search, Size, replay, search_all
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.run import Plan
from tests.sim.broken import OLD_GRANTS


class Forgetful(set[bytes]):
    """Has seen nothing, whatever was put in."""

    def __contains__(self, _: object) -> bool:
        return False


def search_without_pruning(plan: Plan, size: Size) -> Search:
    searching = exhaustive._DepthFirstSearch(plan, size, None)
    searching._seen = Forgetful()
    return searching.result()


@pytest.mark.parametrize("backend", ["memory", "sqlite", "redis", "postgresql"])
def test_one_fault_in_a_world_of_two_clients_breaks_nothing(backend: str) -> None:
    searched = search_all(Plan(backend=backend), Size(faults=1))

    assert searched.is_complete
    assert not searched.failures
    assert searched.runs > 100
    assert searched.pruned > 10


@pytest.mark.parametrize("backend", ["memory", "sqlite", "redis", "postgresql"])
def test_close_things_in_every_order_break_nothing(backend: str) -> None:
    searched = search_all(Plan(backend=backend), Size(faults=0, window=2 * DELAY))

    assert searched.is_complete
    assert not searched.failures
    assert searched.runs > 100


# With all fates it takes ten times as long.
SOME = (Fate.DONE, Fate.UNANSWERED, Fate.ANSWERED_LATE)


def test_a_bug_that_needs_two_faults_at_once_is_found_and_replayed() -> None:
    plan, size = OLD_GRANTS.apply(Plan()), Size(fates=SOME)

    assert not search_all(plan, Size(faults=1)).failures
    searched = search_all(plan, size)

    assert searched.is_complete
    found = next(one for one in searched.failures if one.failure == "mutual exclusion")
    assert found.happened == {"unanswered": 1, "answered_late": 1}
    assert replay(plan, size, found.script).history == found.history


def test_pruning_saves_runs_and_loses_no_bug() -> None:
    plan, size = MUTANTS["paused-is-dead"].apply(Plan()), Size(faults=1, fates=(Fate.DONE, Fate.PAUSED))

    pruned, full = search_all(plan, size), search_without_pruning(plan, size)

    assert pruned.is_complete
    assert full.is_complete
    assert pruned.runs < full.runs
    assert pruned.failures
    assert {one.failure for one in pruned.failures} == {one.failure for one in full.failures}


def test_a_search_that_is_cut_off_says_so() -> None:
    searched = search_all(Plan(backend="memory"), Size(runs_max=20))

    assert searched.runs == 20
    assert not searched.is_complete
    assert not search_all(Plan(backend="memory"), progress=lambda runs, _: runs < 5).is_complete
