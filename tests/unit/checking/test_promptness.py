"""The checker misses a free lock that is not granted to a living waiter."""

from __future__ import annotations

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import PromptGrants
from tests.unit.checking.histories import find, message, queued, removed, server_granted

WITHIN_2 = Promises(grant_max=2.0)
FREE: h.History = [
    server_granted(0, "a", 1),
    queued(1, "b", 2),
    queued(1, "c", 3),
    queued(1, "d", 4),
    removed(5, "a", 1),
]


def test_a_waiter_gets_a_free_lock_in_time() -> None:
    assert not find(PromptGrants, [*FREE, server_granted(7, "d", 4)], WITHIN_2)
    assert (
        message(PromptGrants, [*FREE, server_granted(7.5, "d", 4)], WITHIN_2)
        == "b waited 2.5 s for 'report', which no client had"
    )
    assert find(PromptGrants, [*FREE, h.End(8)], WITHIN_2)
    assert not find(PromptGrants, [*FREE, server_granted(7.5, "d", 4)])


def test_dead_waiters_removed_one_after_the_other_do_not_restart_the_limit() -> None:
    dead: h.History = [*FREE, h.Crashed(5, "b"), h.Crashed(5, "c")]
    removals: h.History = [removed(6.5, "b", 2), removed(8, "c", 3), server_granted(8, "d", 4)]

    assert find(PromptGrants, [*dead, *removals], WITHIN_2)
    assert not find(
        PromptGrants, [*dead, removed(6.5, "b", 2), removed(7, "c", 3), server_granted(7, "d", 4)], WITHIN_2
    )


def test_time_in_which_a_waiter_is_paused_does_not_count() -> None:
    paused: h.History = [
        server_granted(0, "a", 1),
        queued(1, "b", 2),
        removed(5, "a", 1),
        h.Paused(6, "b"),
        h.Resumed(20, "b"),
    ]

    assert not find(PromptGrants, [*paused, server_granted(21, "b", 2)], WITHIN_2)
    assert find(PromptGrants, [*paused, server_granted(23, "b", 2)], WITHIN_2)
