"""Somebody waits for ever, or is passed by those who came later, and the averages look fine."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import BoundedWaiting, FairOrder
from holdfast.guarantees import Order
from tests.unit.checking.stories import (
    admitted,
    asked,
    found,
    gave_up,
    granted,
    left,
    queued,
    released,
    what,
)

HOLDER = admitted(0, "h", 1)
LINE: h.History = [HOLDER, queued(1, "a", 2), queued(2, "b", 3)]


def reader(event: h.ServerQueued | h.ServerGranted, limit: int | None = None) -> h.Event:
    return event._replace(limit=limit, exclusive=False)


def test_the_line_is_served_in_its_order() -> None:
    served: h.History = [left(3, "h", 1), admitted(3, "a", 2), left(4, "a", 2), admitted(4, "b", 3)]

    assert not found(FairOrder, [*LINE, *served])


def test_who_came_later_is_not_let_in_before() -> None:
    assert what(FairOrder, [*LINE, left(3, "h", 1), admitted(3, "b", 3)]) == (
        "b was let into 'report' before a, which was ahead in the line"
    )


def test_nobody_gets_in_past_the_line() -> None:
    assert found(FairOrder, [*LINE, left(3, "h", 1), admitted(3, "c", 4)])


def test_whoever_is_in_is_not_passed_even_if_two_are_in_at_once() -> None:
    assert not found(FairOrder, [HOLDER, queued(1, "a", 2), admitted(2, "a", 2)]), "that is for another checker"


def test_order_is_judged_only_where_it_is_promised() -> None:
    history: h.History = [*LINE, left(3, "h", 1), admitted(3, "b", 3)]

    assert not found(FairOrder, history, Promises(order=Order.STORE))
    assert not found(FairOrder, history, Promises(order=Order.NONE))


@pytest.mark.parametrize(
    "exit_from_line",
    [left(2.5, "a", 2), gave_up(2.5, "a", 2), h.Crashed(2.5, "a"), queued(2.5, "a", 2)],
    ids=["lapsed", "gave up", "crashed", "lost its place and came back"],
)
def test_who_is_not_in_line_any_more_is_not_passed(exit_from_line: h.Event) -> None:
    assert not found(FairOrder, [*LINE, exit_from_line, left(3, "h", 1), admitted(3, "b", 3)])


def test_a_waiter_back_in_its_place_is_not_passed_by_a_holder_that_asks_again_and_again() -> None:
    """The waiter a was passed over, and is back while b is in. Answers to b get lost. Once b has left, a is next."""
    placed: h.History = [HOLDER, queued(1, "a", 2, 10), queued(2, "b", 3, 11), left(2.5, "a", 2), left(3, "h", 1)]
    again: h.History = [admitted(3, "b", 3, 11), queued(4, "a", 2, 10), admitted(5, "b", 3), admitted(6, "b", 3)]

    assert not found(FairOrder, [*placed, *again])
    assert found(FairOrder, [*placed, *again, left(7, "b", 3), admitted(7, "b", 3)])


def test_a_paused_waiter_keeps_its_place_as_long_as_the_server_says_so() -> None:
    assert found(FairOrder, [*LINE, h.Paused(2.5, "a"), left(3, "h", 1), admitted(3, "b", 3)])


@pytest.mark.parametrize(
    ("forgot", "is_excused"),
    [(h.StateLost(2.5), True), (h.StateLost(2.5, "lease", "other"), False), (h.StateLost(2.5, "clock"), False)],
)
def test_a_line_that_the_server_forgot_is_no_line(forgot: h.StateLost, *, is_excused: bool) -> None:
    history: h.History = [*LINE, forgot, left(3, "h", 1), admitted(3, "b", 3)]

    assert bool(found(FairOrder, history)) != is_excused


def test_who_gets_in_line_after_the_server_forgot_has_a_place() -> None:
    again: h.History = [h.StateLost(2.5), queued(3, "b", 3), queued(3, "a", 2)]

    assert found(FairOrder, [*LINE, *again, admitted(4, "a", 2)])
    assert not found(FairOrder, [*LINE, *again, admitted(4, "b", 3)])


def test_another_lock_is_another_line() -> None:
    assert not found(FairOrder, [*LINE, left(3, "h", 1), admitted(3, "b", 3)._replace(lock="other")])


def test_readers_may_be_let_in_in_any_order_among_themselves() -> None:
    line: h.History = [HOLDER, reader(queued(1, "a", 2)), reader(queued(2, "b", 3)), left(3, "h", 1)]

    assert not found(FairOrder, [*line, reader(admitted(3, "b", 3)), reader(admitted(3, "a", 2))])


def test_a_reader_does_not_pass_a_writer() -> None:
    line: h.History = [reader(HOLDER), queued(1, "w", 2)]

    assert found(FairOrder, [*line, reader(admitted(2, "b", 3))])
    assert not found(FairOrder, [*line, left(2, "w", 2), reader(admitted(2, "b", 3))])


def test_a_writer_does_not_pass_a_reader() -> None:
    line: h.History = [HOLDER, reader(queued(1, "a", 2)), queued(2, "w", 3), left(3, "h", 1)]

    assert found(FairOrder, [*line, admitted(3, "w", 3)])
    assert not found(FairOrder, [*line, reader(admitted(3, "a", 2)), left(4, "a", 2), admitted(4, "w", 3)])


def test_a_permit_is_given_past_a_waiter_only_if_there_is_one_for_both() -> None:
    line: h.History = [
        reader(HOLDER, 2),
        reader(admitted(0, "g", 2), 2),
        reader(queued(1, "a", 3), 2),
        reader(queued(1, "b", 4), 2),
        left(2, "h", 1),
    ]

    assert found(FairOrder, [*line, reader(admitted(2, "b", 4), 2)])
    assert not found(FairOrder, [*line, left(2, "g", 2), reader(admitted(2, "b", 4), 2)])


# ── with places that a real server gave, as far as clients learned of them ───────────────────────────────────────

UNSEEN = Promises(sees_server=False)


def test_places_count_and_not_when_clients_learned_of_them() -> None:
    line: h.History = [queued(1, "b", 3, position=12), queued(2, "a", 2, position=11)]

    assert found(FairOrder, [*line, granted(3, "b", 3)], UNSEEN)
    assert not found(FairOrder, [*line, granted(3, "a", 2), released(4, "a", 2), granted(4, "b", 3)], UNSEEN)


def test_tickets_without_a_place_are_not_judged() -> None:
    assert not found(FairOrder, [queued(1, "a", 2), queued(2, "b", 3), granted(3, "b", 3)], UNSEEN)


@pytest.mark.parametrize("trouble", [h.Paused(2, "a"), h.FaultStarted(2, "restart")])
def test_who_was_in_line_during_trouble_may_have_lost_its_place(trouble: h.Event) -> None:
    line: h.History = [queued(1, "a", 2, position=11), queued(1, "b", 3, position=12), trouble]

    assert not found(FairOrder, [*line, granted(3, "b", 3)], UNSEEN)


def test_after_the_trouble_order_is_judged_again() -> None:
    line: h.History = [queued(3, "a", 2, position=11), queued(3, "b", 3, position=12), granted(4, "b", 3)]

    assert found(FairOrder, [h.FaultStarted(1, "restart"), h.FaultEnded(2, "restart"), *line], UNSEEN)
    assert not found(FairOrder, [h.FaultStarted(1, "restart"), *line], UNSEEN)


# ── passed how often ─────────────────────────────────────────────────────────────────────────────────────────────


def passes(count: int) -> h.History:
    """One waits while that many others come later and are served."""
    history: h.History = [asked(0, "a", 1)]
    for ticket in range(2, 2 + count):
        history += [asked(ticket, "b", ticket), granted(ticket, "b", ticket), released(ticket, "b", ticket)]
    return history


@pytest.mark.parametrize("end", [granted(100, "a", 1), gave_up(100, "a", 1), h.End(100)])
def test_nobody_is_passed_more_often_than_the_bound(end: h.Event) -> None:
    assert not found(BoundedWaiting, [*passes(3), end], Promises(overtaken_max=3))
    assert "while 4 calls that came later" in what(BoundedWaiting, [*passes(4), end], Promises(overtaken_max=3))


def test_whoever_waited_before_does_not_count_as_passing() -> None:
    before: h.History = [asked(0, "b", 1), asked(0, "c", 2), asked(1, "a", 3)]
    served: h.History = [granted(2, "b", 1), released(3, "b", 1), granted(3, "c", 2), released(4, "c", 2)]

    assert not found(BoundedWaiting, [*before, *served, granted(4, "a", 3)], Promises(overtaken_max=0))
    assert found(
        BoundedWaiting, [*before, *served, asked(4, "d", 4), granted(4, "d", 4), h.End(5)], Promises(overtaken_max=0)
    )


def test_the_dead_are_not_passed() -> None:
    assert not found(BoundedWaiting, [*passes(4), h.Crashed(99, "a"), h.End(100)], Promises(overtaken_max=3))


def test_without_a_bound_nothing_is_judged() -> None:
    assert not found(BoundedWaiting, [*passes(50), granted(100, "a", 1)])


def test_a_ticket_whose_owner_is_in_passes_those_who_wait() -> None:
    first, kin = admitted(0, "a", 1, 1)._replace(owner="x"), admitted(2, "c", 3, 3)._replace(owner="x")
    line: h.History = [first, queued(1, "b", 2, 2)]

    assert not found(FairOrder, [*line, kin])
    assert found(FairOrder, [*line, kin._replace(owner="y")])
    assert found(FairOrder, [*line, left(1.5, "a", 1), kin])


def test_a_call_with_two_tickets_is_judged_by_the_place_of_the_one_that_was_granted() -> None:
    history: h.History = [queued(0, "d", 1, position=9), queued(1, "b", 2, position=10), queued(2, "d", 1, position=11)]

    assert not found(FairOrder, [*history, admitted(3, "d", 1, position=9)])
    assert found(FairOrder, [*history, admitted(3, "d", 1, position=11)])
