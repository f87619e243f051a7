"""Hazard: a client passes a lease on that it does not have any more, or does not stop although others wait."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import LocalPasses
from tests.unit.checking.histories import find

PROMISES = Promises()
GRANTED: h.History = [
    h.ServerGranted(1, "a", 1, "x", 5),
    h.Granted(1, "a", 1, "x", fence=5, deadline=9),
]
RELEASED: h.History = [*GRANTED, h.ReleaseStarted(2, "a", 1, "x")]


def test_a_released_lease_may_be_passed_on() -> None:
    history = [*RELEASED, h.Passed(2.1, "a", 2, "x", 6, giver=1), h.End(3)]

    assert not find(LocalPasses, history, PROMISES)


@pytest.mark.parametrize(
    ("before", "fence", "problem"),
    [
        (GRANTED, 6, "had not released it"),
        ([*RELEASED, h.Lost(2, "a", 1, "x")], 6, "had lost it"),
        (RELEASED, 5, "with fence 5, and ticket 1 had 5"),
        ([*RELEASED, h.ServerRemoved(2, "a", 1, "x")], 6, "0.300 s after the server had removed its ticket"),
    ],
)
def test_a_lease_must_be_held_and_released_when_it_is_passed_on(before: h.History, fence: int, problem: str) -> None:
    (violation,) = find(LocalPasses, [*before, h.Passed(2.3, "a", 2, "x", fence, giver=1), h.End(3)], PROMISES)

    assert problem in violation.message


def passes(count: int, first: int = 1) -> h.History:
    """This number of passes at the same time; ticket `first` is the giver of the first one."""
    events: h.History = []
    for number in range(first, first + count):
        events += [
            h.Passed(2.1, "a", number + 1, "x", 5 + number, giver=number),
            h.Granted(2.1, "a", number + 1, "x", fence=5 + number, deadline=9),
            h.ReleaseStarted(2.1, "a", number + 1, "x"),
        ]
    return events


QUEUED = h.ServerQueued(2, "b", 9, "x", position=2)
TURN = h.TurnBegan(1, "a", 1, "x", waiting=2)
EXTENDED = h.TurnExtended(2, "a", 1, "x", fences=4)


@pytest.mark.parametrize(
    ("before", "allowed"),
    [
        ([TURN, *RELEASED, QUEUED], 2),
        ([QUEUED._replace(at=1), TURN, *RELEASED], 2),
        ([*RELEASED, QUEUED], 0),
        ([TURN, *RELEASED, EXTENDED, QUEUED], 4),
        ([TURN, *RELEASED, QUEUED, EXTENDED], 2),
        ([TURN, *RELEASED, EXTENDED, QUEUED, h.TurnBegan(2, "a", 1, "x", waiting=1)], 1),
    ],
)
def test_a_client_may_pass_a_lease_on_until_its_turn_ends_when_another_client_waits(
    before: h.History, allowed: int
) -> None:
    assert not find(LocalPasses, [*before, *passes(allowed), h.End(3)], PROMISES)

    (violation,) = find(LocalPasses, [*before, *passes(allowed + 1), h.End(3)], PROMISES)

    assert "although b waited and its turn was over" in violation.message
    assert not find(LocalPasses, [*before, h.Crashed(2, "b"), *passes(allowed + 1), h.End(3)], PROMISES)


def test_passes_before_a_ticket_was_queued_count_in_the_turn() -> None:
    history = [TURN, *RELEASED, *passes(1), QUEUED._replace(at=2.1)]

    assert not find(LocalPasses, [*history, *passes(1, first=2), h.End(3)], PROMISES)
    assert find(LocalPasses, [*history, *passes(2, first=2), h.End(3)], PROMISES)
