"""Marks in ZooKeeper: one of many raises one, it outlives its session, and nothing that looks for locks sees it.

Old ones are taken away by who makes new ones. A node that is made anew has the versions of the one before: who has seen
that one must not write over it, nor take it away.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast.backends.zookeeper.port import CreateParent, Delete, Get, Transaction
from holdfast.backends.zookeeper.protocol.registers import BATCH_MAX, REAP_SAMPLE
from holdfast.core.tickets import Granted
from tests.integration.zookeeper.roads import Bench, bench, ticket
from tests.support.zookeeper.ensembles import Linked

FIRST, SECOND = "1" * 32, "2" * 32
SHORT = 0.001  # seconds that a mark is kept, of one that is old as soon as the server's clock has gone on
ALWAYS, NEVER = 0.0, 0.99  # whether it is time to look for old ones


@pytest.fixture
def ours(url: str) -> Iterator[Bench]:
    with bench(url) as made:
        yield made


def test_a_mark_is_raised_by_one_and_never_goes_down(ours: Bench) -> None:
    assert ours.advance_register("a", 5, FIRST)
    assert not ours.advance_register("a", 5, SECOND)
    assert not ours.advance_register("a", 4, SECOND)
    assert ours.advance_register("a", 5, FIRST)
    assert ours.read_registers("a", "b") == [5, 0]
    assert ours.advance_register("a", 2**63 - 1, SECOND)
    assert ours.read_registers("a") == [2**63 - 1]
    assert ours.read_registers() == []


def test_who_comes_too_late_asks_once_and_who_raises_it_twice(ours: Bench) -> None:
    ours.advance_register("a", 1)
    ours.round_trips()

    ours.advance_register("a", 2)
    assert ours.round_trips() == 2
    ours.advance_register("a", 2, SECOND)
    assert ours.round_trips() == 1


def test_of_many_at_once_one_raises_it(url: str) -> None:
    raised: list[int] = []

    def raise_all(number: int) -> None:
        with bench(url) as own:
            raised.extend(period for period in range(1, 30) if own.advance_register("a", period, f"{number:032x}"))

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
            ours.advance_register("a", before)
        ours.road.before_writes = lambda: theirs.advance_register("a", 3, SECOND)

        assert not ours.advance_register("a", 3, FIRST)
        ours.road.before_writes = lambda: theirs.advance_register("a", 4, SECOND)
        assert ours.advance_register("a", 5, FIRST)
        assert theirs.read_registers("a") == [5]


def test_a_lost_answer_is_found_out_by_the_nonce(ours: Bench) -> None:
    ours.road.loses_writes = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.advance_register("a", 3, FIRST)
    ours.road.loses_writes = False

    assert not ours.advance_register("a", 3, SECOND)
    assert ours.advance_register("a", 3, FIRST)


def test_it_outlives_the_session(url: str) -> None:
    with bench(url) as first:
        first.advance_register("a", 7)

    with bench(url) as second:
        assert second.read_registers("a") == [7]


@pytest.mark.parametrize("raw", ["no", "yes"])
def test_nothing_that_looks_for_locks_sees_a_mark(url: str, raw: str) -> None:
    with bench(f"{url}?raw_names={raw}") as ours:
        for name in ("a", "x/y", "%", "n-lock-0000000001", "a" * 528):
            assert ours.advance_register(name, 1)

        assert ours.locked() == []
        assert isinstance(ours.try_acquire(ticket("a")), Granted)
        assert ours.locked() == ["a"]


def test_a_raw_name_is_not_taken_for_the_marks(url: str) -> None:
    with bench(f"{url}?raw_names=yes") as ours, pytest.raises(holdfast.ConfigurationError, match="%marks is taken"):
        ours.try_acquire(ticket("%marks/a"))


def test_what_is_no_mark_is_named(url: str, ours: Bench) -> None:
    with bench(f"{url}/%25marks?raw_names=yes") as vandal:
        ours.advance_register("b", 1)
        vandal.try_acquire(ticket("a"))

        with pytest.raises(holdfast.NameConflict, match="other data"):
            ours.advance_register("a", 1)


# ── old marks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_marks_whose_time_is_over_go_while_new_ones_are_made(ours: Bench) -> None:
    old = [f"old-{number}" for number in range(20)]
    for name in old:
        ours.advance_register(name, 1, keep=SHORT)
    ours.advance_register("kept", 1)

    made = until_gone(ours, *old)

    assert ours.read_registers("kept", *made) == [1] * (1 + len(made))


def test_a_mark_that_is_gone_can_be_made_anew(ours: Bench) -> None:
    ours.advance_register("a", 7, keep=SHORT)
    ours.dice.thrown = ALWAYS
    until_gone(ours, "a")

    assert ours.advance_register("a", 1, SECOND)
    assert not ours.advance_register("a", 1, FIRST)
    assert ours.read_registers("a") == [1]


def test_a_short_time_does_not_cut_short_that_of_the_number_before(ours: Bench) -> None:
    ours.dice.thrown = ALWAYS
    ours.advance_register("a", 1, keep=60.0)
    ours.advance_register("a", 2, keep=SHORT)
    ours.advance_register("old", 1, keep=SHORT)

    until_gone(ours, "old")

    assert ours.read_registers("a") == [2]


def test_making_a_mark_is_two_round_trips_and_now_and_then_a_few_more(ours: Bench) -> None:
    ours.dice.thrown = NEVER
    ours.advance_register("first", 1, keep=SHORT)
    ours.round_trips()

    ours.advance_register("a", 1)
    assert ours.round_trips() == 2
    ours.dice.thrown = ALWAYS
    until_gone(ours, "first")
    ours.round_trips()
    ours.advance_register("b", 1)
    assert ours.round_trips() == 4  # the names, and what they are


def test_only_so_many_are_looked_at_at_one_time(ours: Bench) -> None:
    ours.dice.thrown = NEVER
    old = [f"old-{number}" for number in range(REAP_SAMPLE + 10)]
    for name in old:
        ours.advance_register(name, 1, keep=SHORT)
    until_old(ours, old[-1])
    ours.round_trips()

    ours.dice.thrown = ALWAYS
    ours.advance_register("a", 1)

    trips = ours.road.trips
    looks = [sum(isinstance(one, Get) for one in requests) for requests in trips]
    assert max(looks) == BATCH_MAX
    assert sum(looks) == REAP_SAMPLE + 4  # and two looks at the mark itself, and what it stands below
    transactions = [one for requests in trips for one in requests if isinstance(one, Transaction)]
    gone = [len([one for one in together.requests if isinstance(one, Delete)]) for together in transactions]
    assert REAP_SAMPLE - 10 < sum(gone) <= REAP_SAMPLE  # but for the new ones
    assert max(gone) == BATCH_MAX
    assert sum(ours.read_registers(*old)) == len(old) - sum(gone)


def test_one_that_is_raised_after_it_was_seen_to_be_old_stays(url: str, ours: Bench) -> None:
    with bench(url) as theirs:
        ours.advance_register("a", 1, keep=SHORT)
        until_old(ours, "a")
        ours.dice.thrown = ALWAYS
        before_old_ones_go(ours, lambda: theirs.advance_register("a", 2))

        assert ours.advance_register("new", 1)
        assert ours.read_registers("a") == [2]


def test_one_that_is_made_anew_after_it_was_seen_to_be_old_stays(url: str, ours: Bench) -> None:
    with bench(url) as theirs:
        ours.advance_register("a", 1, keep=SHORT)
        until_old(ours, "a")
        ours.dice.thrown = theirs.dice.thrown = ALWAYS
        before_old_ones_go(ours, lambda: (until_gone(theirs, "a"), theirs.advance_register("a", 2)))

        assert ours.advance_register("new", 1)
        assert ours.read_registers("a") == [2]


@pytest.mark.parametrize("number", [4, 5])
def test_who_has_seen_the_one_before_does_not_write_over_one_that_is_made_anew(
    url: str, ours: Bench, number: int
) -> None:
    with bench(url) as theirs:
        theirs.advance_register("a", 1, keep=SHORT)
        theirs.dice.thrown = ALWAYS
        ours.road.before_writes = lambda: (until_gone(theirs, "a"), theirs.advance_register("a", 5, SECOND))

        assert not ours.advance_register("a", number, FIRST)
        assert theirs.read_registers("a") == [5]


def test_on_three_servers_one_of_many_raises_it_while_old_ones_go(ensemble: Linked) -> None:
    raised: list[int] = []
    url = ensemble.url(session_timeout=40)

    def raise_all(number: int) -> None:
        with bench(url) as own:
            own.dice.thrown = ALWAYS
            for period in range(1, 30):
                own.advance_register(f"old-{number}-{period}", 1, keep=SHORT)
                if own.advance_register("marked", period, f"{number:032x}"):
                    raised.append(period)

    threads = [threading.Thread(target=raise_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(raised) == len(set(raised))
    with bench(url) as ours:
        assert ours.read_registers("marked") == [29]
        ours.dice.thrown = ALWAYS
        until_gone(ours, *(f"old-{number}-{period}" for number in range(4) for period in range(1, 30)))


def test_what_goes_wrong_with_old_ones_is_no_error_of_the_new_one(ours: Bench) -> None:
    ours.advance_register("a", 1, keep=SHORT)
    until_old(ours, "a")
    ours.dice.thrown = ALWAYS
    before_old_ones_go(ours, lambda: setattr(ours.road, "loses_writes", True))

    assert ours.advance_register("new", 1)
    assert ours.road.loses_writes, "it came to that"


def test_the_node_that_counts_what_has_gone_is_none_that_servers_take_away(ours: Bench) -> None:
    ours.advance_register("a", 1)

    made = [one for requests in ours.road.trips for one in requests if isinstance(one, CreateParent)]
    assert made[-1] == CreateParent(f"{ours.root}/%marks", is_container=False)


def test_what_is_no_mark_is_left_alone(url: str, ours: Bench) -> None:
    with bench(f"{url}/%25marks?raw_names=yes") as vandal:
        ours.advance_register("old", 1, keep=SHORT)
        vandal.try_acquire(ticket("a"))
        ours.dice.thrown = ALWAYS

        until_gone(ours, "old")

        assert vandal.locked() == ["a"]


def until_gone(ours: Bench, *names: str) -> list[str]:
    """Make marks until these are no more; which were made."""
    made: list[str] = []
    while any(ours.read_registers(*names)):
        made.append(next(_fresh))
        assert ours.advance_register(made[-1], 1)
        assert len(made) < 3000
    return made


def until_old(ours: Bench, name: str) -> None:
    """Make marks until its time is over by the server's clock; it is still there."""
    ours.dice.thrown = NEVER
    is_closed = False
    while not is_closed:
        ours.advance_register(made := next(_fresh), 1)
        is_closed = ours.marked_at(made) > ours.marked_at(name) + SHORT


def before_old_ones_go(ours: Bench, happens: Callable[[], object]) -> None:
    """The first write is that of the new mark, the second takes old ones away."""
    ours.road.before_writes = lambda: setattr(ours.road, "before_writes", happens)


_fresh = (f"new-{number}" for number in itertools.count())
