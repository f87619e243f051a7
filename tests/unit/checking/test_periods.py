"""The checker misses two runs in one period, or none from a store that refuses every claim."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import OncePerPeriod
from tests.unit.checking.histories import check, find, message

JOB = "job"


def claim(at: float, client: str, ticket: int, outcome: h.ClaimOutcome, number: int = 7) -> h.History:
    return [h.ClaimStarted(at, client, ticket, JOB, number), h.ClaimEnded(at, client, ticket, JOB, number, outcome)]


def test_one_claim_of_a_period_gets_the_run() -> None:
    history = [*claim(0, "a", 1, "ours"), *claim(1, "b", 2, "not ours"), *claim(2, "b", 3, "ours", number=8)]

    assert check(OncePerPeriod, history).was_tested
    assert not find(OncePerPeriod, history)


@pytest.mark.parametrize("between", [[], [h.Crashed(1, "a")], [h.StateLost(1, "clock")], [h.StateLost(1, "lease")]])
def test_a_second_run_is_found_also_after_a_crash(between: h.History) -> None:
    history = [*claim(0, "a", 1, "ours"), *between, *claim(2, "b", 2, "ours")]

    assert message(OncePerPeriod, history) == "b got the run of 'job' in period 7, which a had got before"


def test_a_run_may_be_claimed_again_after_a_state_loss() -> None:
    begun, ended = claim(0, "c", 9, "ours")

    assert not find(OncePerPeriod, [*claim(0, "a", 1, "ours"), h.StateLost(1), *claim(2, "b", 2, "ours")])
    assert not find(OncePerPeriod, [begun, h.StateLost(1), *claim(2, "b", 2, "ours"), ended._replace(at=3.0)])


def test_one_claim_gets_the_run_in_a_healed_world() -> None:
    history: h.History = [h.Healed(0), *claim(10, "a", 1, "not ours"), *claim(11, "b", 2, "not ours"), h.End(20)]

    assert message(OncePerPeriod, history).startswith("no client got the run of 'job' in period 7")
    assert not find(OncePerPeriod, [*history[:-1], *claim(12, "c", 3, "ours"), h.End(20)])


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
def test_a_claim_without_an_answer_may_have_got_the_run(excuse: h.History) -> None:
    assert not find(OncePerPeriod, [h.Healed(0), *excuse, *claim(10, "a", 1, "not ours"), h.End(20)])


def test_a_period_that_was_claimed_before_the_healing_may_have_no_run() -> None:
    before = h.ClaimStarted(1, "c", 3, JOB, 7)

    assert not find(OncePerPeriod, [before, h.Healed(2), *claim(10, "a", 1, "not ours"), h.End(20)])
