"""Marks in ZooKeeper: one of many raises one, it outlives its session, and nothing that looks for locks sees it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.tickets import Granted
from tests.integration.zookeeper.roads import Bench, bench, ticket

FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture
def ours(url: str) -> Iterator[Bench]:
    with bench(url) as made:
        yield made


def test_a_mark_is_raised_by_one_and_never_goes_down(ours: Bench) -> None:
    assert ours.mark("a", 5, FIRST)
    assert not ours.mark("a", 5, SECOND)
    assert not ours.mark("a", 4, SECOND)
    assert ours.mark("a", 5, FIRST)
    assert ours.marks("a", "b") == [5, 0]
    assert ours.mark("a", 2**63 - 1, SECOND)
    assert ours.marks("a") == [2**63 - 1]
    assert ours.marks() == []


def test_who_comes_too_late_asks_once_and_who_raises_it_twice(ours: Bench) -> None:
    ours.mark("a", 1)
    ours.round_trips()

    ours.mark("a", 2)
    assert ours.round_trips() == 2
    ours.mark("a", 2, SECOND)
    assert ours.round_trips() == 1


def test_of_many_at_once_one_raises_it(url: str) -> None:
    raised: list[int] = []

    def raise_all(number: int) -> None:
        with bench(url) as own:
            raised.extend(period for period in range(1, 30) if own.mark("a", period, f"{number:032x}"))

    threads = [threading.Thread(target=raise_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(raised) == len(set(raised))
    assert max(raised) == 29


@pytest.mark.parametrize("before", [0, 2])
def test_one_who_comes_between_the_look_and_the_write_is_seen(url: str, ours: Bench, before: int) -> None:
    with bench(url) as theirs:
        if before:
            ours.mark("a", before)
        ours.road.before_writes = lambda: theirs.mark("a", 3, SECOND)

        assert not ours.mark("a", 3, FIRST)
        ours.road.before_writes = lambda: theirs.mark("a", 4, SECOND)
        assert ours.mark("a", 5, FIRST)
        assert theirs.marks("a") == [5]


def test_a_lost_answer_is_found_out_by_the_nonce(ours: Bench) -> None:
    ours.road.loses_writes = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.mark("a", 3, FIRST)
    ours.road.loses_writes = False

    assert not ours.mark("a", 3, SECOND)
    assert ours.mark("a", 3, FIRST)


def test_it_outlives_the_session(url: str) -> None:
    with bench(url) as first:
        first.mark("a", 7)

    with bench(url) as second:
        assert second.marks("a") == [7]


@pytest.mark.parametrize("raw", ["no", "yes"])
def test_nothing_that_looks_for_locks_sees_a_mark(url: str, raw: str) -> None:
    with bench(f"{url}?raw_names={raw}") as ours:
        for name in ("a", "x/y", "%", "n-lock-0000000001", "a" * 528):
            assert ours.mark(name, 1)

        assert ours.locked() == []
        assert isinstance(ours.enter(ticket("a")), Granted)
        assert ours.locked() == ["a"]


def test_a_raw_name_is_not_taken_for_the_marks(url: str) -> None:
    with bench(f"{url}?raw_names=yes") as ours, pytest.raises(holdfast.ConfigurationError, match="%marks is taken"):
        ours.enter(ticket("%marks/a"))


def test_what_is_no_mark_is_named(url: str, ours: Bench) -> None:
    with bench(f"{url}/%25marks?raw_names=yes") as vandal:
        ours.mark("b", 1)
        vandal.enter(ticket("a"))

        with pytest.raises(holdfast.NameConflict, match="something else"):
            ours.mark("a", 1)
