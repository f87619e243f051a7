"""Two leaders in one term, and nobody sees it."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import OneLeader
from holdfast.guarantees import FenceOrder
from tests.unit.checking.stories import check, found, what


def elected(at: float, client: str, ticket: int, term: int, seat: str = "seat") -> h.Elected:
    return h.Elected(at, client, ticket, seat, term)


def test_terms_grow() -> None:
    history: h.History = [
        elected(0, "a", 1, 5),
        elected(1, "b", 2, 6),
        elected(2, "a", 3, 9),
        elected(2, "c", 4, 1, "x"),
    ]

    assert check(OneLeader, history).was_tested
    assert not found(OneLeader, history)


def test_two_leaders_of_one_term_are_found() -> None:
    assert what(OneLeader, [elected(0, "a", 1, 5), elected(1, "b", 2, 5)]) == (
        "b leads 'seat' in the same term as a before it, 5"
    )


def test_an_older_term_is_found_and_does_not_count_from_there() -> None:
    history: h.History = [elected(0, "a", 1, 5), elected(1, "b", 2, 4), elected(2, "c", 3, 5)]

    assert [violation.at for violation in found(OneLeader, history)] == [1, 2]


@pytest.mark.parametrize(
    ("fence", "what", "is_excused"),
    [
        (FenceOrder.UNCONDITIONAL, "data", False),
        (FenceOrder.DURABLE_STORAGE, "data", True),
        (FenceOrder.DURABLE_STORAGE, "lease", False),
        (FenceOrder.BEST_EFFORT, "clock", True),
    ],
)
def test_what_the_server_forgot_counts_where_fences_depend_on_it(
    fence: FenceOrder, what: h.StateKind, *, is_excused: bool
) -> None:
    history: h.History = [elected(0, "a", 1, 5), h.StateLost(1, what), elected(2, "b", 2, 5)]

    assert bool(found(OneLeader, history, Promises(fence=fence))) is not is_excused
