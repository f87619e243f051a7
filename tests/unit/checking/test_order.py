"""The checker misses a waiter that waits forever or is overtaken by later ones."""

from __future__ import annotations

import pytest

from holdfast.guarantees import Order
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import BoundedWaiting, FairOrder
from tests.unit.checking.histories import (
    failed,
    find,
    granted,
    message,
    queued,
    released,
    removed,
    server_granted,
    started,
)

HOLDER = server_granted(0, "h", 1)
QUEUE: h.History = [HOLDER, queued(1, "a", 2), queued(2, "b", 3)]


def reader(event: h.ServerQueued | h.ServerGranted, limit: int | None = None) -> h.Event:
    return event._replace(limit=limit, exclusive=False)


def test_the_queue_is_granted_in_order() -> None:
    served: h.History = [removed(3, "h", 1), server_granted(3, "a", 2), removed(4, "a", 2), server_granted(4, "b", 3)]

    assert not find(FairOrder, [*QUEUE, *served])


def test_a_later_ticket_granted_before_an_earlier_one_is_found() -> None:
    assert message(FairOrder, [*QUEUE, removed(3, "h", 1), server_granted(3, "b", 3)]) == (
        "b was granted 'report' before a, which was queued before it"
    )


def test_a_ticket_that_skips_the_queue_is_found() -> None:
    assert find(FairOrder, [*QUEUE, removed(3, "h", 1), server_granted(3, "c", 4)])


def test_a_granted_ticket_is_not_overtaken() -> None:
    assert not find(FairOrder, [HOLDER, queued(1, "a", 2), server_granted(2, "a", 2)]), "that is for another checker"


def test_order_is_checked_only_if_it_is_promised() -> None:
    history: h.History = [*QUEUE, removed(3, "h", 1), server_granted(3, "b", 3)]

    assert not find(FairOrder, history, Promises(order=Order.STORE))
    assert not find(FairOrder, history, Promises(order=Order.NONE))


@pytest.mark.parametrize(
    "event",
    [removed(2.5, "a", 2), failed(2.5, "a", 2), h.Crashed(2.5, "a"), queued(2.5, "a", 2)],
    ids=["expired", "gave up", "crashed", "lost its position and was queued again"],
)
def test_a_ticket_that_left_the_queue_is_not_overtaken(event: h.Event) -> None:
    assert not find(FairOrder, [*QUEUE, event, removed(3, "h", 1), server_granted(3, "b", 3)])


def test_a_waiter_queued_again_is_not_overtaken_by_a_holder_that_repeats_its_request() -> None:
    """The waiter a was skipped, and is queued again while b holds the lock. Replies to b get lost. Then a is next."""
    placed: h.History = [HOLDER, queued(1, "a", 2, 10), queued(2, "b", 3, 11), removed(2.5, "a", 2), removed(3, "h", 1)]
    again: h.History = [
        server_granted(3, "b", 3, 11),
        queued(4, "a", 2, 10),
        server_granted(5, "b", 3),
        server_granted(6, "b", 3),
    ]

    assert not find(FairOrder, [*placed, *again])
    assert find(FairOrder, [*placed, *again, removed(7, "b", 3), server_granted(7, "b", 3)])


def test_a_waiter_queued_again_is_not_overtaken_by_a_holder_whose_delayed_request_arrives_before_its_release() -> None:
    placed: h.History = [HOLDER, queued(1, "a", 2, 10), queued(2, "b", 3, 11), removed(2.5, "a", 2), removed(3, "h", 1)]
    again: h.History = [
        server_granted(3, "b", 3, 11),
        released(3.5, "b", 3),
        queued(4, "a", 2, 10),
    ]

    assert not find(FairOrder, [*placed, *again, server_granted(5, "b", 3, 11)])
    assert find(FairOrder, [*placed, *again, removed(5, "b", 3), server_granted(6, "b", 3, 11)])
    lost: h.History = [h.StateLost(4.2), queued(4.5, "a", 2, 10)]
    assert find(FairOrder, [*placed, *again, *lost, server_granted(5, "b", 3, 11)])


def test_a_paused_waiter_keeps_its_position_while_the_server_has_it() -> None:
    assert find(FairOrder, [*QUEUE, h.Paused(2.5, "a"), removed(3, "h", 1), server_granted(3, "b", 3)])


@pytest.mark.parametrize(
    ("state_lost", "is_excused"),
    [(h.StateLost(2.5), True), (h.StateLost(2.5, "lease", "other"), False), (h.StateLost(2.5, "clock"), False)],
)
def test_a_queue_lost_with_state_is_not_checked(state_lost: h.StateLost, *, is_excused: bool) -> None:
    history: h.History = [*QUEUE, state_lost, removed(3, "h", 1), server_granted(3, "b", 3)]

    assert bool(find(FairOrder, history)) != is_excused


def test_a_ticket_queued_after_a_state_loss_is_checked() -> None:
    again: h.History = [h.StateLost(2.5), queued(3, "b", 3), queued(3, "a", 2)]

    assert find(FairOrder, [*QUEUE, *again, server_granted(4, "a", 2)])
    assert not find(FairOrder, [*QUEUE, *again, server_granted(4, "b", 3)])


def test_each_lock_has_its_own_queue() -> None:
    assert not find(FairOrder, [*QUEUE, removed(3, "h", 1), server_granted(3, "b", 3)._replace(lock="other")])


def test_readers_may_be_granted_in_any_order() -> None:
    queue: h.History = [HOLDER, reader(queued(1, "a", 2)), reader(queued(2, "b", 3)), removed(3, "h", 1)]

    assert not find(FairOrder, [*queue, reader(server_granted(3, "b", 3)), reader(server_granted(3, "a", 2))])


def test_a_reader_does_not_overtake_a_writer() -> None:
    queue: h.History = [reader(HOLDER), queued(1, "w", 2)]

    assert find(FairOrder, [*queue, reader(server_granted(2, "b", 3))])
    assert not find(FairOrder, [*queue, removed(2, "w", 2), reader(server_granted(2, "b", 3))])


def test_a_writer_does_not_overtake_a_reader() -> None:
    queue: h.History = [HOLDER, reader(queued(1, "a", 2)), queued(2, "w", 3), removed(3, "h", 1)]

    assert find(FairOrder, [*queue, server_granted(3, "w", 3)])
    assert not find(
        FairOrder, [*queue, reader(server_granted(3, "a", 2)), removed(4, "a", 2), server_granted(4, "w", 3)]
    )


def test_a_permit_overtakes_a_waiter_only_if_both_have_one() -> None:
    queue: h.History = [
        reader(HOLDER, 2),
        reader(server_granted(0, "g", 2), 2),
        reader(queued(1, "a", 3), 2),
        reader(queued(1, "b", 4), 2),
        removed(2, "h", 1),
    ]

    assert find(FairOrder, [*queue, reader(server_granted(2, "b", 4), 2)])
    assert not find(FairOrder, [*queue, removed(2, "g", 2), reader(server_granted(2, "b", 4), 2)])


# ── with the positions that a real server gave, as far as clients received them ──────────────────────────────────

WITHOUT_SERVER_EVENTS = Promises(sees_server=False)


def test_positions_decide_and_not_the_order_of_client_events() -> None:
    queue: h.History = [queued(1, "b", 3, position=12), queued(2, "a", 2, position=11)]

    assert find(FairOrder, [*queue, granted(3, "b", 3)], WITHOUT_SERVER_EVENTS)
    assert not find(
        FairOrder, [*queue, granted(3, "a", 2), released(4, "a", 2), granted(4, "b", 3)], WITHOUT_SERVER_EVENTS
    )


def test_tickets_without_a_position_are_not_checked() -> None:
    assert not find(FairOrder, [queued(1, "a", 2), queued(2, "b", 3), granted(3, "b", 3)], WITHOUT_SERVER_EVENTS)


@pytest.mark.parametrize("fault", [h.Paused(2, "a"), h.FaultStarted(2, "restart")])
def test_a_waiter_queued_during_a_fault_is_exempt(fault: h.Event) -> None:
    queue: h.History = [queued(1, "a", 2, position=11), queued(1, "b", 3, position=12), fault]

    assert not find(FairOrder, [*queue, granted(3, "b", 3)], WITHOUT_SERVER_EVENTS)


def test_order_is_checked_again_after_a_fault() -> None:
    queue: h.History = [queued(3, "a", 2, position=11), queued(3, "b", 3, position=12), granted(4, "b", 3)]

    assert find(FairOrder, [h.FaultStarted(1, "restart"), h.FaultEnded(2, "restart"), *queue], WITHOUT_SERVER_EVENTS)
    assert not find(FairOrder, [h.FaultStarted(1, "restart"), *queue], WITHOUT_SERVER_EVENTS)


# ── how often a waiter is overtaken ──────────────────────────────────────────────────────────────────────────────


def passes(count: int) -> h.History:
    """A history in which one call waits while that many later calls are granted."""
    history: h.History = [started(0, "a", 1)]
    for ticket in range(2, 2 + count):
        history += [started(ticket, "b", ticket), granted(ticket, "b", ticket), released(ticket, "b", ticket)]
    return history


@pytest.mark.parametrize("end", [granted(100, "a", 1), failed(100, "a", 1), h.End(100)])
def test_a_waiter_overtaken_more_often_than_the_bound_is_found(end: h.Event) -> None:
    assert not find(BoundedWaiting, [*passes(3), end], Promises(overtaken_max=3))
    assert "while 4 later calls" in message(BoundedWaiting, [*passes(4), end], Promises(overtaken_max=3))


def test_earlier_waiters_do_not_count_as_overtaking() -> None:
    before: h.History = [started(0, "b", 1), started(0, "c", 2), started(1, "a", 3)]
    served: h.History = [granted(2, "b", 1), released(3, "b", 1), granted(3, "c", 2), released(4, "c", 2)]

    assert not find(BoundedWaiting, [*before, *served, granted(4, "a", 3)], Promises(overtaken_max=0))
    assert find(
        BoundedWaiting, [*before, *served, started(4, "d", 4), granted(4, "d", 4), h.End(5)], Promises(overtaken_max=0)
    )


def test_a_dead_waiter_is_not_overtaken() -> None:
    assert not find(BoundedWaiting, [*passes(4), h.Crashed(99, "a"), h.End(100)], Promises(overtaken_max=3))


def test_nothing_is_checked_without_a_bound() -> None:
    assert not find(BoundedWaiting, [*passes(50), granted(100, "a", 1)])


def test_a_ticket_whose_owner_holds_the_lock_overtakes_waiters() -> None:
    first, same_owner = (
        server_granted(0, "a", 1, 1)._replace(owner="x"),
        server_granted(2, "c", 3, 3)._replace(owner="x"),
    )
    queue: h.History = [first, queued(1, "b", 2, 2)]

    assert not find(FairOrder, [*queue, same_owner])
    assert find(FairOrder, [*queue, same_owner._replace(owner="y")])
    assert find(FairOrder, [*queue, removed(1.5, "a", 1), same_owner])


def test_a_call_with_two_tickets_is_checked_by_the_position_of_the_granted_one() -> None:
    history: h.History = [queued(0, "d", 1, position=9), queued(1, "b", 2, position=10), queued(2, "d", 1, position=11)]

    assert not find(FairOrder, [*history, server_granted(3, "d", 1, position=9)])
    assert find(FairOrder, [*history, server_granted(3, "d", 1, position=11)])
