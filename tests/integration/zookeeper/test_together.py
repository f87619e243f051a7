"""Several locks at once: in two round trips, none behind one that is busy, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.tickets import Granted, Waiting
from tests.integration.zookeeper.roads import Bench, bench, ticket


@pytest.fixture
def ours(url: str) -> Iterator[Bench]:
    with bench(url) as made:
        yield made


@pytest.fixture
def theirs(url: str) -> Iterator[Bench]:
    with bench(url) as made:
        yield made


def test_fifty_are_taken_in_two_round_trips_and_given_back_in_one(ours: Bench) -> None:
    tickets = [ticket(f"n{number:03}") for number in range(50)]

    outcomes = ours.try_acquire_all(tickets)

    assert ours.round_trips() == 2
    assert [type(outcome) for outcome in outcomes] == [Granted] * 50
    assert ours.locked() == [one.name for one in tickets]
    ours.round_trips()
    assert ours.release(tickets) == [True] * 50
    assert ours.round_trips() == 1
    assert ours.locked() == []


def test_those_before_the_first_that_is_busy_are_taken_and_none_behind_it(ours: Bench, theirs: Bench) -> None:
    tickets = [ticket(name) for name in "abcde"]
    theirs.try_acquire(ticket("c"))

    granted = ours.try_acquire_all(tickets)
    (waiting,) = ours.try_acquire_all(tickets[2:])

    assert [type(outcome) for outcome in granted] == [Granted] * 2
    assert isinstance(waiting, Waiting)
    assert waiting.holder == "here/7"
    assert ours.locked() == ["a", "b", "c"]


def test_who_comes_between_the_look_and_the_create_is_not_overtaken(ours: Bench, theirs: Bench) -> None:
    tickets = [ticket(name) for name in "abc"]
    ours.road.before_writes = lambda: theirs.try_acquire(ticket("b"))

    outcomes = ours.try_acquire_all(tickets)

    assert [type(outcome) for outcome in outcomes] == [Granted, Waiting]
    assert ours.locked() == ["a", "b"]
    assert ours.release(tickets[:1]) == [True]
    assert ours.locked() == ["b"]


def test_a_lost_answer_leaves_nothing_once_it_is_withdrawn(ours: Bench) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.road.loses_writes = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)
    ours.road.loses_writes = False
    assert ours.locked() == ["a", "b"]

    ours.release(tickets)

    assert ours.locked() == []


def test_who_asks_again_after_a_lost_answer_has_what_it_has(ours: Bench) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.road.loses_writes = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)
    ours.road.loses_writes = False

    outcomes = [*ours.try_acquire_all(tickets), *ours.try_acquire_all(tickets[1:])]

    assert [type(outcome) for outcome in outcomes] == [Granted] * 2
    assert ours.release(tickets) == [True, True]
    assert ours.locked() == []
