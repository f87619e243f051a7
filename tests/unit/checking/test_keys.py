"""The checker misses a second start of a key, a second completion, or a wrong result."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import OneStartPerKey
from tests.unit.checking.histories import check, find, message

KEY = "charge:7"


def called(at: float, client: str, ticket: int, *, crashes: bool = False, errors: bool = True) -> h.History:
    return [h.OnceCalled(at, client, ticket, KEY, crashes, errors)]


def start(at: float, client: str, ticket: int, fence: int = 1) -> h.History:
    lease = 100 + ticket
    return [
        h.Granted(at, client, lease, f"holdfast:once:{KEY}", fence),
        h.RunStarted(at, client, ticket, KEY, fence, lease),
    ]


def returned(at: float, client: str, ticket: int) -> h.History:
    return [h.RunEnded(at, client, ticket, KEY, "returned")]


def ended(at: float, client: str, ticket: int, outcome: h.OnceOutcome, value: int | None = None) -> h.History:
    return [h.OnceEnded(at, client, ticket, KEY, outcome, value)]


def run(at: float, client: str, ticket: int, fence: int = 1, *, crashes: bool = False) -> h.History:
    """A whole run that is recorded."""
    return [
        *called(at, client, ticket, crashes=crashes),
        *start(at, client, ticket, fence),
        *returned(at, client, ticket),
        *ended(at, client, ticket, "ran", ticket),
    ]


def test_one_run_and_its_result_for_the_others() -> None:
    history = [*run(0, "a", 1), *called(1, "b", 2), *ended(1, "b", 2, "done", 1)]

    assert check(OneStartPerKey, history).was_tested
    assert not find(OneStartPerKey, history)


def test_a_second_start_is_found() -> None:
    crashed: h.History = [*called(0, "a", 1), *start(0, "a", 1), h.Crashed(1, "a")]

    assert "which a had started before" in message(OneStartPerKey, [*crashed, *called(2, "b", 2), *start(2, "b", 2, 2)])
    assert "which was complete before" in message(
        OneStartPerKey, [*run(0, "a", 1), *called(2, "b", 2), *start(2, "b", 2, 2)]
    )


def test_a_run_that_raised_or_crashed_may_be_repeated_if_its_options_say_so() -> None:
    raised: h.History = [*called(0, "a", 1), *start(0, "a", 1), h.RunEnded(1, "a", 1, KEY, "raised")]
    crashed: h.History = [*called(0, "a", 1, crashes=True), *start(0, "a", 1), h.Crashed(1, "a")]

    assert not find(OneStartPerKey, [*raised, *ended(1, "a", 1, "raised"), *run(2, "b", 2, 2)])
    assert not find(OneStartPerKey, [*crashed, *run(2, "b", 2, 2, crashes=True)])
    assert "has fence 1, an earlier one 1" in message(OneStartPerKey, [*crashed, *run(2, "b", 2, 1, crashes=True)])


def test_a_remembered_error_counts_as_a_start() -> None:
    history: h.History = [*called(0, "a", 1, errors=False), *start(0, "a", 1), h.RunEnded(1, "a", 1, KEY, "raised")]

    assert find(OneStartPerKey, [*history, *called(2, "b", 2, errors=False), *start(2, "b", 2, 2)])


def test_a_second_completion_is_found() -> None:
    first, second = run(0, "a", 1, crashes=True), run(0, "b", 2, 2, crashes=True)
    history = [*first[:4], *second, *first[4:]]

    assert "which b had completed before" in " ".join(each.message for each in find(OneStartPerKey, history))


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([*run(0, "a", 1), *called(1, "b", 2), *ended(1, "b", 2, "done", 9)], "that no run has returned"),
        ([*run(0, "a", 1), *called(1, "b", 2), *ended(2, "b", 2, "interrupted")], "after it was complete"),
        ([*called(0, "a", 1), h.RunStarted(0, "a", 1, KEY, 1, 7)], "without its lock"),
        ([*called(0, "a", 1), h.End(1000)], "has not ended"),
    ],
)
def test_a_wrong_outcome_is_found(history: h.History, text: str) -> None:
    assert text in message(OneStartPerKey, history)


def test_lost_data_are_excused_and_a_lost_minority_is_not() -> None:
    history = [*run(0, "a", 1), h.StateLost(1), *run(2, "b", 2, 2)]

    assert not find(OneStartPerKey, history)
    assert find(OneStartPerKey, [h.StateLost(1, majority=False) if type(e) is h.StateLost else e for e in history])
