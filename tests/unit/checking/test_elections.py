"""The checker misses two leaders of one term."""

from __future__ import annotations

import pytest

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import OneLeader
from tests.unit.checking.histories import check, find, message


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
    assert not find(OneLeader, history)


def test_two_leaders_of_one_term_are_found() -> None:
    assert message(OneLeader, [elected(0, "a", 1, 5), elected(1, "b", 2, 5)]) == (
        "b leads 'seat' in the same term as a before it: 5"
    )


def test_an_older_term_is_found_and_does_not_lower_the_maximum() -> None:
    history: h.History = [elected(0, "a", 1, 5), elected(1, "b", 2, 4), elected(2, "c", 3, 5)]

    assert [violation.at for violation in find(OneLeader, history)] == [1, 2]


@pytest.mark.parametrize(
    ("fence", "kind", "is_excused"),
    [
        (FenceOrder.UNCONDITIONAL, "data", False),
        (FenceOrder.DURABLE_STORAGE, "data", True),
        (FenceOrder.DURABLE_STORAGE, "lease", False),
        (FenceOrder.BEST_EFFORT, "clock", True),
    ],
)
def test_a_state_loss_resets_terms_if_fences_depend_on_it(
    fence: FenceOrder, kind: h.StateKind, *, is_excused: bool
) -> None:
    history: h.History = [elected(0, "a", 1, 5), h.StateLost(1, kind), elected(2, "b", 2, 5)]

    assert bool(find(OneLeader, history, Promises(fence=fence))) is not is_excused
