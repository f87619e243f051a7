"""The checker misses an attempt that ends without a deadlock, or two attempts that end for one deadlock."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import ProvenDeadlocks
from tests.unit.checking.histories import check, find, message

PROMISES = Promises(answer_max=10)
# a holds x and waits for y, b holds y and waits for x.
DEADLOCK: h.History = [
    h.Granted(0, "a", 1, "x", fence=1),
    h.Granted(1, "b", 2, "y", fence=1),
    h.AcquireStarted(2, "a", 3, "y"),
    h.AcquireStarted(3, "b", 4, "x"),
]


def ended(at: float, client: str, ticket: int, lock: str) -> h.AcquireFailed:
    return h.AcquireFailed(at, client, ticket, lock, "deadlock")


def test_one_attempt_of_a_cycle_may_end() -> None:
    history = [*DEADLOCK, ended(5, "b", 4, "x"), h.End(9)]

    assert check(ProvenDeadlocks, history, PROMISES).was_tested
    assert not find(ProvenDeadlocks, history, PROMISES)


def test_a_second_attempt_of_the_same_cycle_is_found() -> None:
    history = [*DEADLOCK, ended(5, "b", 4, "x"), ended(5.1, "a", 3, "y"), h.End(9)]

    assert message(ProvenDeadlocks, history, PROMISES) == (
        "a's attempt for 'y' ended with a deadlock that had ended already"
    )


@pytest.mark.parametrize(
    "end",
    [
        h.AcquireFailed(4, "b", 4, "x", "timed out"),
        h.ServerRemoved(4, "b", 2, "y"),
        h.ReleaseStarted(4, "b", 2, "y"),
        h.Crashed(4, "b"),
    ],
)
def test_a_cycle_that_ended_long_ago_does_not_count(end: h.Event) -> None:
    assert not find(ProvenDeadlocks, [*DEADLOCK, end, ended(13, "a", 3, "y"), h.End(20)], PROMISES)
    assert find(ProvenDeadlocks, [*DEADLOCK, end, ended(15, "a", 3, "y"), h.End(20)], PROMISES)


def test_an_attempt_that_waits_for_a_client_that_does_not_wait_is_in_no_cycle() -> None:
    history = [*DEADLOCK[:3], ended(5, "a", 3, "y"), h.End(9)]

    assert (
        message(ProvenDeadlocks, history, PROMISES) == "a's attempt for 'y' ended with a deadlock, but it was in none"
    )


def test_readers_do_not_wait_for_readers_but_for_waiting_writers() -> None:
    reads: h.History = [
        h.Granted(0, "a", 1, "x", fence=1, limit=None, exclusive=False),
        h.Granted(1, "b", 2, "y", fence=1),
        h.AcquireStarted(2, "a", 3, "y"),
    ]
    writer = h.AcquireStarted(3, "c", 4, "x")
    reader = h.AcquireStarted(4, "b", 5, "x", limit=None, exclusive=False)

    assert find(ProvenDeadlocks, [*reads, reader, ended(5, "b", 5, "x")], PROMISES)
    assert not find(ProvenDeadlocks, [*reads, writer, reader, ended(5, "b", 5, "x")], PROMISES)


def test_each_caller_of_a_client_waits_and_holds_for_itself() -> None:
    """Two callers of a client are two members of a cycle. A call of one caller does not end the wait of another."""
    history: h.History = [
        h.AcquireStarted(0, "a", 1, "x", caller=1),
        h.AcquireStarted(0, "a", 2, "y", caller=2),
        h.Granted(1, "a", 1, "x", fence=1),
        h.Granted(1, "a", 2, "y", fence=1),
        h.AcquireStarted(2, "a", 3, "y", caller=1),
    ]
    second_wait = h.AcquireStarted(3, "a", 4, "x", caller=2)
    third_caller = h.AcquireStarted(3, "a", 5, "x", caller=3)
    end: h.History = [ended(4, "a", 3, "y"), h.End(9)]

    assert not find(ProvenDeadlocks, [*history, second_wait, *end], PROMISES)
    assert not find(ProvenDeadlocks, [*history, second_wait, third_caller, *end], PROMISES)
    assert find(ProvenDeadlocks, [*history, third_caller, *end], PROMISES), "the third caller holds nothing"
    assert find(ProvenDeadlocks, [*history, *end], PROMISES), "the second caller does not wait"
