"""Several locks at once: acquired in two round trips, none after a busy one, and no nodes are left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.tickets import Granted, Waiting
from tests.integration.zookeeper.harness import Harness, harness, ticket


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        yield made


@pytest.fixture
def other(url: str) -> Iterator[Harness]:
    with harness(url) as made:
        yield made


def test_fifty_locks_are_acquired_in_two_round_trips_and_released_in_one(ours: Harness) -> None:
    tickets = [ticket(f"n{number:03}") for number in range(50)]

    outcomes = ours.try_acquire_all(tickets)

    assert ours.round_trips() == 2
    assert [type(outcome) for outcome in outcomes] == [Granted] * 50
    assert ours.locked() == [ticket.name for ticket in tickets]
    ours.round_trips()
    assert ours.release(tickets) == [True] * 50
    assert ours.round_trips() == 1
    assert ours.locked() == []


def test_only_locks_before_the_first_busy_one_are_acquired(ours: Harness, other: Harness) -> None:
    tickets = [ticket(name) for name in "abcde"]
    other.try_acquire(ticket("c"))

    granted = ours.try_acquire_all(tickets)
    (waiting,) = ours.try_acquire_all(tickets[2:])

    assert [type(outcome) for outcome in granted] == [Granted] * 2
    assert isinstance(waiting, Waiting)
    assert waiting.holder == "here/7"
    assert ours.locked() == ["a", "b", "c"]


def test_a_ticket_that_is_created_between_the_listing_and_the_create_is_not_overtaken(
    ours: Harness, other: Harness
) -> None:
    tickets = [ticket(name) for name in "abc"]
    ours.ensemble.before_writes = lambda: other.try_acquire(ticket("b"))

    outcomes = ours.try_acquire_all(tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted, Waiting]
    assert ours.locked() == ["a", "b"]
    assert ours.release(tickets[:1]) == [True]
    assert ours.locked() == ["b"]


def test_a_withdrawal_deletes_all_nodes_when_an_answer_was_lost(ours: Harness) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.ensemble.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)
    ours.ensemble.lose_write_answers = False
    assert ours.locked() == ["a", "b"]

    ours.release(tickets)

    assert ours.locked() == []


def test_a_repeated_acquire_finds_its_tickets_when_the_answer_was_lost(ours: Harness) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.ensemble.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)
    ours.ensemble.lose_write_answers = False

    outcomes = [*ours.try_acquire_all(tickets), *ours.try_acquire_all(tickets[1:])]

    assert [type(outcome) for outcome in outcomes] == [Granted] * 2
    assert ours.release(tickets) == [True, True]
    assert ours.locked() == []
