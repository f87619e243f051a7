"""Two runs in one period, and nobody sees it; or none at all, from a store that always says no."""

from __future__ import annotations

import pytest

from holdfast.checking import history as h
from holdfast.checking.checkers import OncePerPeriod
from tests.unit.checking.stories import check, found, what

JOB = "job"


def claim(at: float, client: str, ticket: int, how: h.ClaimOutcome, number: int = 7) -> h.History:
    return [h.ClaimStarted(at, client, ticket, JOB, number), h.ClaimEnded(at, client, ticket, JOB, number, how)]


def test_one_of_all_is_told_to_run() -> None:
    history = [*claim(0, "a", 1, "ours"), *claim(1, "b", 2, "not ours"), *claim(2, "b", 3, "ours", number=8)]

    assert check(OncePerPeriod, history).was_tested
    assert not found(OncePerPeriod, history)


@pytest.mark.parametrize("between", [[], [h.Crashed(1, "a")], [h.StateLost(1, "clock")], [h.StateLost(1, "lease")]])
def test_a_second_run_is_found_also_after_a_crash(between: h.History) -> None:
    history = [*claim(0, "a", 1, "ours"), *between, *claim(2, "b", 2, "ours")]

    assert what(OncePerPeriod, history) == "b was told to run 'job' in period 7, and so was a before it"


def test_what_the_server_forgot_may_be_claimed_again() -> None:
    begun, ended = claim(0, "c", 9, "ours")

    assert not found(OncePerPeriod, [*claim(0, "a", 1, "ours"), h.StateLost(1), *claim(2, "b", 2, "ours")])
    assert not found(OncePerPeriod, [begun, h.StateLost(1), *claim(2, "b", 2, "ours"), ended._replace(at=3.0)])


def test_in_a_healed_world_somebody_runs() -> None:
    story: h.History = [h.Healed(0), *claim(10, "a", 1, "not ours"), *claim(11, "b", 2, "not ours"), h.End(20)]

    assert what(OncePerPeriod, story).startswith("nobody was told to run 'job' in period 7")
    assert not found(OncePerPeriod, [*story[:-1], *claim(12, "c", 3, "ours"), h.End(20)])


@pytest.mark.parametrize(
    "excuse",
    [
        claim(9.5, "c", 3, "cancelled"),
        claim(9.5, "c", 3, "unknown"),
        [h.ClaimStarted(9.5, "c", 3, JOB, 7), h.Crashed(9.6, "c")],
        [h.ClaimStarted(9.5, "c", 3, JOB, 7)],
    ],
    ids=["cancelled", "unknown", "crashed", "open"],
)
def test_a_claim_without_an_answer_may_have_been_the_one(excuse: h.History) -> None:
    assert not found(OncePerPeriod, [h.Healed(0), *excuse, *claim(10, "a", 1, "not ours"), h.End(20)])


def test_a_period_that_was_claimed_before_the_healing_may_have_no_run() -> None:
    before = h.ClaimStarted(1, "c", 3, JOB, 7)

    assert not found(OncePerPeriod, [before, h.Healed(2), *claim(10, "a", 1, "not ours"), h.End(20)])
