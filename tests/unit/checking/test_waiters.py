"""The checker misses a dead waiter that stays in the queue."""

from __future__ import annotations

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import DeadWaitersRemoved
from tests.unit.checking.histories import check, find, message, queued, removed, server_granted, started

WITHIN_2 = Promises(dead_waiter_max=2.0)
DEAD: h.History = [started(0, "a", 1), queued(1, "a", 1), h.Crashed(5, "a")]


def test_a_dead_waiter_is_removed_in_time() -> None:
    assert message(DeadWaitersRemoved, [*DEAD, removed(8, "a", 1)], WITHIN_2) == (
        "a waited for 'report' until 8 s, 3 s after its process had died"
    )
    assert not find(DeadWaitersRemoved, [*DEAD, removed(7, "a", 1)], WITHIN_2)
    assert check(DeadWaitersRemoved, [*DEAD, removed(7, "a", 1)], WITHIN_2).was_tested


def test_a_dead_waiter_that_is_first_or_arrives_late_is_removed_in_time() -> None:
    assert find(DeadWaitersRemoved, [*DEAD, server_granted(6, "a", 1), removed(8, "a", 1)], WITHIN_2)
    assert find(DeadWaitersRemoved, [*DEAD, server_granted(5.05, "a", 1), removed(8, "a", 1)], WITHIN_2), (
        "it was granted because other tickets left"
    )
    assert find(
        DeadWaitersRemoved, [started(0, "a", 1), h.Crashed(5, "a"), queued(6, "a", 1), removed(8, "a", 1)], WITHIN_2
    )
    assert find(DeadWaitersRemoved, [*DEAD, h.End(8)], WITHIN_2)


def test_a_holder_and_a_waiter_of_the_next_process_may_stay() -> None:
    holder: h.History = [
        started(0, "a", 1),
        queued(1, "a", 1),
        server_granted(2, "a", 1),
        h.Crashed(5, "a"),
        removed(9, "a", 1),
    ]
    successor: h.History = [
        h.Crashed(5, "a"),
        h.Restarted(6, "a"),
        started(6, "a", 2),
        queued(6, "a", 2),
        removed(9, "a", 2),
    ]

    assert not find(DeadWaitersRemoved, holder, WITHIN_2)
    assert not find(DeadWaitersRemoved, successor, WITHIN_2)


def test_a_dead_waiter_granted_by_its_last_request_may_stay() -> None:
    down: h.History = [*DEAD, h.Unreachable(5), h.Reachable(9), server_granted(9, "a", 1), removed(15, "a", 1)]

    assert not find(DeadWaitersRemoved, down, WITHIN_2)


def test_a_ticket_that_waits_again_while_its_lost_lease_is_still_on_the_server_may_stay_as_a_holder() -> None:
    lost: h.History = [started(0, "a", 1), server_granted(1, "a", 1)]
    dead: h.History = [queued(4, "a", 1), h.Crashed(5, "a")]

    assert not find(DeadWaitersRemoved, [*lost, *dead, removed(9, "a", 1)], WITHIN_2)
    assert find(DeadWaitersRemoved, [*lost, removed(3, "a", 1), *dead, removed(9, "a", 1)], WITHIN_2), (
        "its lease had been removed"
    )


def test_time_in_which_the_server_is_down_does_not_count() -> None:
    down: h.History = [*DEAD, h.Unreachable(6), h.Reachable(9), removed(10, "a", 1)]

    assert not find(DeadWaitersRemoved, down, WITHIN_2)
    assert find(DeadWaitersRemoved, [*DEAD, h.Unreachable(6, "b"), h.Reachable(9, "b"), removed(10, "a", 1)], WITHIN_2)


def test_a_dead_waiter_restored_with_an_old_copy_may_stay_again() -> None:
    back: h.History = [*DEAD, removed(6, "a", 1), h.StateLost(9, "data"), queued(9, "a", 1)]

    assert not find(DeadWaitersRemoved, [*back, removed(11, "a", 1)], WITHIN_2)
    assert find(DeadWaitersRemoved, [*back, removed(12, "a", 1)], WITHIN_2)


def test_a_store_without_this_promise_is_not_checked() -> None:
    assert not find(DeadWaitersRemoved, [*DEAD, removed(80, "a", 1)], Promises())
