"""A free lock is kept from a waiter that is alive, and no checker reports it."""

from __future__ import annotations

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import PromptGrants
from tests.unit.checking.stories import admitted, found, left, queued, what

WITHIN_2 = Promises(grant_max=2.0)
FREE: h.History = [admitted(0, "a", 1), queued(1, "b", 2), queued(1, "c", 3), queued(1, "d", 4), left(5, "a", 1)]


def test_a_waiter_gets_a_free_lock_in_time() -> None:
    assert not found(PromptGrants, [*FREE, admitted(7, "d", 4)], WITHIN_2)
    assert (
        what(PromptGrants, [*FREE, admitted(7.5, "d", 4)], WITHIN_2)
        == "b waited 2.5 s for 'report', which no client had"
    )
    assert found(PromptGrants, [*FREE, h.End(8)], WITHIN_2)
    assert not found(PromptGrants, [*FREE, admitted(7.5, "d", 4)])


def test_dead_waiters_that_leave_one_after_the_other_do_not_start_the_time_again() -> None:
    dead: h.History = [*FREE, h.Crashed(5, "b"), h.Crashed(5, "c")]
    lapsing: h.History = [left(6.5, "b", 2), left(8, "c", 3), admitted(8, "d", 4)]

    assert found(PromptGrants, [*dead, *lapsing], WITHIN_2)
    assert not found(PromptGrants, [*dead, left(6.5, "b", 2), left(7, "c", 3), admitted(7, "d", 4)], WITHIN_2)


def test_time_in_which_a_waiter_is_paused_does_not_count() -> None:
    paused: h.History = [admitted(0, "a", 1), queued(1, "b", 2), left(5, "a", 1), h.Paused(6, "b"), h.Resumed(20, "b")]

    assert not found(PromptGrants, [*paused, admitted(21, "b", 2)], WITHIN_2)
    assert found(PromptGrants, [*paused, admitted(23, "b", 2)], WITHIN_2)
