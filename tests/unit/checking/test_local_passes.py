"""Hazard: a client passes a lease on that it does not have any more, or does not stop although others wait."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import LocalPasses
from tests.unit.checking.histories import find

PROMISES = Promises(passes_max=2)
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


def test_a_client_may_not_pass_a_lease_on_again_and_again_while_another_waits() -> None:
    history: h.History = [*RELEASED, h.ServerQueued(2, "b", 9, "x", position=2)]
    for number in range(1, 4):
        history += [
            h.Passed(2.1, "a", number + 1, "x", 5 + number, giver=number),
            h.Granted(2.1, "a", number + 1, "x", fence=5 + number, deadline=9),
            h.ReleaseStarted(2.1, "a", number + 1, "x"),
        ]

    (violation,) = find(LocalPasses, [*history, h.End(3)], PROMISES)

    assert "3 times while b waited" in violation.message
    without_waiter = [*history[:4], h.Crashed(2, "b"), *history[4:], h.End(3)]
    assert not find(LocalPasses, without_waiter, PROMISES)
