"""A dead waiter stays in the queue, and no checker reports it."""

from __future__ import annotations

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import DeadWaitersLeave
from tests.unit.checking.stories import admitted, asked, check, found, left, queued, what

WITHIN_2 = Promises(dead_waiter_max=2.0)
DEAD: h.History = [asked(0, "a", 1), queued(1, "a", 1), h.Crashed(5, "a")]


def test_a_dead_waiter_has_to_leave_in_time() -> None:
    assert what(DeadWaitersLeave, [*DEAD, left(8, "a", 1)], WITHIN_2) == (
        "a waited for 'report' until 8 s, 3 s after its process had died"
    )
    assert not found(DeadWaitersLeave, [*DEAD, left(7, "a", 1)], WITHIN_2)
    assert check(DeadWaitersLeave, [*DEAD, left(7, "a", 1)], WITHIN_2).was_tested


def test_a_dead_waiter_that_is_first_in_line_or_arrives_late_has_to_leave_too() -> None:
    assert found(DeadWaitersLeave, [*DEAD, admitted(6, "a", 1), left(8, "a", 1)], WITHIN_2)
    assert found(DeadWaitersLeave, [*DEAD, admitted(5.05, "a", 1), left(8, "a", 1)], WITHIN_2), "by others that left"
    assert found(DeadWaitersLeave, [asked(0, "a", 1), h.Crashed(5, "a"), queued(6, "a", 1), left(8, "a", 1)], WITHIN_2)
    assert found(DeadWaitersLeave, [*DEAD, h.End(8)], WITHIN_2)


def test_a_holder_and_a_waiter_of_the_next_process_may_stay() -> None:
    holder: h.History = [asked(0, "a", 1), queued(1, "a", 1), admitted(2, "a", 1), h.Crashed(5, "a"), left(9, "a", 1)]
    successor: h.History = [
        h.Crashed(5, "a"),
        h.Restarted(6, "a"),
        asked(6, "a", 2),
        queued(6, "a", 2),
        left(9, "a", 2),
    ]

    assert not found(DeadWaitersLeave, holder, WITHIN_2)
    assert not found(DeadWaitersLeave, successor, WITHIN_2)


def test_a_dead_waiter_that_its_last_request_made_a_holder_may_stay() -> None:
    down: h.History = [*DEAD, h.Unreachable(5), h.Reachable(9), admitted(9, "a", 1), left(15, "a", 1)]

    assert not found(DeadWaitersLeave, down, WITHIN_2)


def test_a_ticket_that_waits_again_while_its_lost_lease_is_still_on_the_server_may_stay_as_a_holder() -> None:
    lost: h.History = [asked(0, "a", 1), admitted(1, "a", 1)]
    dead: h.History = [queued(4, "a", 1), h.Crashed(5, "a")]

    assert not found(DeadWaitersLeave, [*lost, *dead, left(9, "a", 1)], WITHIN_2)
    assert found(DeadWaitersLeave, [*lost, left(3, "a", 1), *dead, left(9, "a", 1)], WITHIN_2), "its lease has left"


def test_time_in_which_the_server_is_down_does_not_count() -> None:
    down: h.History = [*DEAD, h.Unreachable(6), h.Reachable(9), left(10, "a", 1)]

    assert not found(DeadWaitersLeave, down, WITHIN_2)
    assert found(DeadWaitersLeave, [*DEAD, h.Unreachable(6, "b"), h.Reachable(9, "b"), left(10, "a", 1)], WITHIN_2)


def test_an_old_copy_of_the_data_brings_a_dead_waiter_back() -> None:
    back: h.History = [*DEAD, left(6, "a", 1), h.StateLost(9, "data"), queued(9, "a", 1)]

    assert not found(DeadWaitersLeave, [*back, left(11, "a", 1)], WITHIN_2)
    assert found(DeadWaitersLeave, [*back, left(12, "a", 1)], WITHIN_2)


def test_a_store_that_does_not_promise_it_is_not_judged() -> None:
    assert not found(DeadWaitersLeave, [*DEAD, left(80, "a", 1)], Promises())
