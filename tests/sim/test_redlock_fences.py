"""A quorum fence that fails in one order of messages out of millions: the shipped code must pass in all of them."""

from __future__ import annotations

import pytest

from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.redlock_configs import SIZES, Search, Size, search_fences
from holdfast_lab.sim.run import Plan
from tests.support.commands import simulate

APART, FORGETS, RESENT, _ = SIZES

# For each mutant the first size that is large enough to find it.
NEEDS = {
    "quorum-fence-without-write-back": APART,
    "write-back-without-owner": APART._replace(clocks=((1, 1, 1),)),
    "write-back-outside-voters": APART._replace(clocks=((1, 1, 1),)),
    "lost-count-starts-at-zero": FORGETS,
    "write-back-by-nonce": RESENT,
}


def search_mutant(mutant: Mutant, size: Size) -> Search:
    searched = search_fences(mutant.apply(Plan()), size)
    assert searched.broken is not None, f"{mutant.name} survived {searched.states} states: {mutant.mistake}"
    return searched


# FORGETS and RESENT have the first start values of APART too. `make sim` also searches the largest size.
@pytest.mark.parametrize("size", [APART._replace(clocks=APART.clocks[1:]), FORGETS, RESENT])
def test_fences_are_in_order_in_all_states_of_three_nodes_and_two_clients(size: Size) -> None:
    searched = search_fences(Plan(backend="redlock"), size)

    assert searched.broken is None, "\n".join(searched.path)
    assert searched.is_complete
    assert searched.states > 100_000
    assert searched.grants > 10_000


def test_every_mutant_that_random_runs_miss_is_searched_here() -> None:
    """The tests of other backends' mutants are in the files of their worlds."""
    not_by_seeds = {name for name, mutant in MUTANTS.items() if not mutant.by_seeds and mutant.backend == "redlock"}
    assert set(NEEDS) == not_by_seeds


@pytest.mark.parametrize("name", NEEDS)
def test_a_mutant_is_found_with_a_trace_that_ends_in_two_grants(name: str) -> None:
    searched = search_mutant(MUTANTS[name], NEEDS[name])

    assert 5 < len(searched.path) < 40
    assert sum("begins an attempt" in line for line in searched.path) == 2
    assert sum("is granted" in line for line in searched.path) == 2


def test_comparing_the_nonce_alone_is_enough_when_nothing_is_sent_twice() -> None:
    """A larger search finds the same violation."""
    plan = MUTANTS["write-back-by-nonce"].apply(Plan())

    searched = search_fences(plan, RESENT._replace(resent=0))

    assert searched.is_complete
    assert searched.broken is None


def test_half_of_the_nodes_as_majority_is_found() -> None:
    assert "which was granted before" in str(search_mutant(MUTANTS["half-is-a-majority"], SIZES[0]).broken)


def test_a_search_that_ends_early_is_not_complete() -> None:
    plan = Plan(backend="redlock")

    assert not search_fences(plan, RESENT._replace(states_max=1000)).is_complete
    assert not search_fences(plan, RESENT, progress=lambda states, _: states < 5000).is_complete


def test_the_command_line_shows_the_trace_and_the_number_of_states() -> None:
    arguments = ["--exhaustive", "--mutant", "write-back-without-owner"]

    text, data = simulate(*arguments), simulate(*arguments, "--json")

    assert (text.status, data.status) == (1, 1)
    assert "BROKEN: " in text.out
    assert "raise of A's attempt 1 arrives" in text.out
    assert text.out.endswith("Again: holdfast simulate --mutant write-back-without-owner --exhaustive\n")
    (config,) = data.json["configs"]
    assert config["states"] > 1000
    assert config["path"][-1] == config["broken"]


def test_unsupported_options_of_the_exhaustive_search_are_refused() -> None:
    refused = simulate("--exhaustive", "--backend", "redlock", "--clients", "3")

    assert refused.status == 2
    assert "always has two clients" in refused.errors
