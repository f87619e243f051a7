"""Registers in ZooKeeper: one of many clients advances a register. It outlives its session, and is not listed.

Clients that create registers delete old ones. A node that is created again has the same versions as the old node: a
client that has read the old node must neither overwrite nor delete the new one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast.backends.zookeeper.port import CreateParent, Delete, Get, Transaction
from holdfast.backends.zookeeper.protocol.kept_nodes import SAMPLE_SHARE
from holdfast.backends.zookeeper.protocol.registers import Registers
from holdfast.core.tickets import Granted
from tests.integration.zookeeper.harness import Harness, harness, ticket
from tests.support.zookeeper.ensembles import ProxiedEnsemble

BATCH_MAX, REAP_SAMPLE = Registers.batch_max, SAMPLE_SHARE * Registers.reap_every
FIRST, SECOND = "1" * 32, "2" * 32
SHORT = 0.001  # seconds to keep a register that expires as soon as the server's clock has advanced
ALWAYS, NEVER = 0.0, 0.99  # values of jitter: search for old registers, or not


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as created:
        yield created


def test_a_late_advance_needs_one_request_and_a_successful_one_two(ours: Harness) -> None:
    ours.advance_register("a", 1)
    ours.round_trips()

    ours.advance_register("a", 2)
    assert ours.round_trips() == 2
    ours.advance_register("a", 2, SECOND)
    assert ours.round_trips() == 1


@pytest.mark.parametrize("before", [0, 2])
def test_an_advance_between_read_and_write_is_detected(url: str, ours: Harness, before: int) -> None:
    with harness(url) as other:
        if before:
            ours.advance_register("a", before)
        ours.ensemble.before_writes = lambda: other.advance_register("a", 3, SECOND)

        assert not ours.advance_register("a", 3, FIRST)
        ours.ensemble.before_writes = lambda: other.advance_register("a", 4, SECOND)
        assert ours.advance_register("a", 5, FIRST)
        assert other.read_registers("a") == [5]


def test_an_advance_is_found_by_its_nonce_when_the_answer_was_lost(ours: Harness) -> None:
    ours.ensemble.lose_write_answers = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.advance_register("a", 3, FIRST)
    ours.ensemble.lose_write_answers = False

    assert not ours.advance_register("a", 3, SECOND)
    assert ours.advance_register("a", 3, FIRST)


@pytest.mark.parametrize("raw", ["no", "yes"])
def test_registers_are_not_listed_as_locks(url: str, raw: str) -> None:
    with harness(f"{url}?raw_names={raw}") as ours:
        for name in ("a", "x/y", "%", "n-lock-0000000001", "a" * 528):
            assert ours.advance_register(name, 1)

        assert ours.locked() == []
        assert isinstance(ours.try_acquire(ticket("a")), Granted)
        assert ours.locked() == ["a"]


def test_a_raw_name_cannot_be_the_parent_of_registers(url: str) -> None:
    with harness(f"{url}?raw_names=yes") as ours, pytest.raises(holdfast.ConfigurationError, match="%marks is taken"):
        ours.try_acquire(ticket("%marks/a"))


def test_an_error_names_data_that_are_no_register(url: str, ours: Harness) -> None:
    with harness(f"{url}/%25marks?raw_names=yes") as other:
        ours.advance_register("b", 1)
        other.try_acquire(ticket("a"))

        with pytest.raises(holdfast.NameConflict, match="other data"):
            ours.advance_register("a", 1)


# ── old registers ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_old_registers_are_deleted_while_new_ones_are_created(ours: Harness) -> None:
    old = [f"old-{number}" for number in range(20)]
    for name in old:
        ours.advance_register(name, 1, keep=SHORT)
    ours.advance_register("kept", 1)

    created = create_until_deleted(ours, *old)

    assert ours.read_registers("kept", *created) == [1] * (1 + len(created))


def test_a_deleted_register_can_be_created_again(ours: Harness) -> None:
    ours.advance_register("a", 7, keep=SHORT)
    ours.runtime.fixed = ALWAYS
    create_until_deleted(ours, "a")

    assert ours.advance_register("a", 1, SECOND)
    assert not ours.advance_register("a", 1, FIRST)
    assert ours.read_registers("a") == [1]


def test_a_shorter_time_does_not_shorten_the_time_of_the_previous_number(ours: Harness) -> None:
    ours.runtime.fixed = ALWAYS
    ours.advance_register("a", 1, keep=60.0)
    ours.advance_register("a", 2, keep=SHORT)
    ours.advance_register("old", 1, keep=SHORT)

    create_until_deleted(ours, "old")

    assert ours.read_registers("a") == [2]


def test_a_new_register_needs_two_round_trips_and_sometimes_a_few_more(ours: Harness) -> None:
    ours.runtime.fixed = NEVER
    ours.advance_register("first", 1, keep=SHORT)
    ours.round_trips()

    ours.advance_register("a", 1)
    assert ours.round_trips() == 2
    ours.runtime.fixed = ALWAYS
    create_until_deleted(ours, "first")
    ours.round_trips()
    ours.advance_register("b", 1)
    assert ours.round_trips() == 4  # two more: the list of names, and their data


def test_a_search_reads_a_limited_sample(ours: Harness) -> None:
    ours.runtime.fixed = NEVER
    old = [f"old-{number}" for number in range(REAP_SAMPLE + 10)]
    for name in old:
        ours.advance_register(name, 1, keep=SHORT)
    create_until_old(ours, old[-1])
    ours.round_trips()

    ours.runtime.fixed = ALWAYS
    ours.advance_register("a", 1)

    trips = ours.ensemble.trips
    reads = [sum(isinstance(request, Get) for request in requests) for requests in trips]
    assert max(reads) == BATCH_MAX
    assert sum(reads) == REAP_SAMPLE + 4  # and two reads of the register itself and of its parent
    transactions = [request for requests in trips for request in requests if isinstance(request, Transaction)]
    deletes = [sum(isinstance(request, Delete) for request in transaction.requests) for transaction in transactions]
    assert REAP_SAMPLE - 10 < sum(deletes) <= REAP_SAMPLE  # new registers in the sample stay
    assert max(deletes) == BATCH_MAX
    assert sum(ours.read_registers(*old)) == len(old) - sum(deletes)


def test_an_old_register_stays_when_it_is_advanced_before_its_delete(url: str, ours: Harness) -> None:
    with harness(url) as other:
        ours.advance_register("a", 1, keep=SHORT)
        create_until_old(ours, "a")
        ours.runtime.fixed = ALWAYS
        before_delete(ours, lambda: other.advance_register("a", 2))

        assert ours.advance_register("new", 1)
        assert ours.read_registers("a") == [2]


def test_an_old_register_stays_when_it_is_created_again_before_its_delete(url: str, ours: Harness) -> None:
    with harness(url) as other:
        ours.advance_register("a", 1, keep=SHORT)
        create_until_old(ours, "a")
        ours.runtime.fixed = other.runtime.fixed = ALWAYS
        before_delete(ours, lambda: (create_until_deleted(other, "a"), other.advance_register("a", 2)))

        assert ours.advance_register("new", 1)
        assert ours.read_registers("a") == [2]


@pytest.mark.parametrize("number", [4, 5])
def test_a_register_that_was_created_again_is_not_overwritten_by_a_reader_of_the_old_one(
    url: str, ours: Harness, number: int
) -> None:
    with harness(url) as other:
        other.advance_register("a", 1, keep=SHORT)
        other.runtime.fixed = ALWAYS
        ours.ensemble.before_writes = lambda: (create_until_deleted(other, "a"), other.advance_register("a", 5, SECOND))

        assert not ours.advance_register("a", number, FIRST)
        assert other.read_registers("a") == [5]


def test_one_of_many_clients_advances_on_three_servers_while_old_registers_are_deleted(
    ensemble: ProxiedEnsemble,
) -> None:
    advanced: list[int] = []
    url = ensemble.url(session_timeout=40)

    def advance_all(number: int) -> None:
        with harness(url) as own:
            own.runtime.fixed = ALWAYS
            for period in range(1, 15):
                own.advance_register(f"old-{number}-{period}", 1, keep=SHORT)
                if own.advance_register("shared", period, f"{number:032x}"):
                    advanced.append(period)

    threads = [threading.Thread(target=advance_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(advanced) == len(set(advanced))
    with harness(url) as ours:
        assert ours.read_registers("shared") == [14]
        ours.runtime.fixed = ALWAYS
        create_until_deleted(ours, *(f"old-{number}-{period}" for number in range(4) for period in range(1, 15)))


def test_a_failed_search_for_old_registers_is_no_error_of_the_advance(ours: Harness) -> None:
    ours.advance_register("a", 1, keep=SHORT)
    create_until_old(ours, "a")
    ours.runtime.fixed = ALWAYS
    before_delete(ours, lambda: setattr(ours.ensemble, "lose_write_answers", True))

    assert ours.advance_register("new", 1)
    assert ours.ensemble.lose_write_answers, "the fault did not happen"


def test_the_parent_of_registers_is_no_container(ours: Harness) -> None:
    ours.advance_register("a", 1)

    created = [request for requests in ours.ensemble.trips for request in requests if isinstance(request, CreateParent)]
    assert created[-1] == CreateParent(f"{ours.root}/%marks", is_container=False)


def test_a_search_ignores_data_that_are_no_register(url: str, ours: Harness) -> None:
    with harness(f"{url}/%25marks?raw_names=yes") as other:
        ours.advance_register("old", 1, keep=SHORT)
        other.try_acquire(ticket("a"))
        ours.runtime.fixed = ALWAYS

        create_until_deleted(ours, "old")

        assert other.locked() == ["a"]


def create_until_deleted(ours: Harness, *names: str) -> list[str]:
    """Create new registers until these are deleted. Return the names of the new ones."""
    created: list[str] = []
    while any(ours.read_registers(*names)):
        created.append(next(_new_names))
        assert ours.advance_register(created[-1], 1)
        assert len(created) < 3000
    return created


def create_until_old(ours: Harness, name: str) -> None:
    """Create new registers until this one is old by the server's clock, without deleting it."""
    ours.runtime.fixed = NEVER
    is_old = False
    while not is_old:
        ours.advance_register(created := next(_new_names), 1)
        is_old = ours.written_at(created) > ours.written_at(name) + SHORT


def before_delete(ours: Harness, action: Callable[[], object]) -> None:
    """Call the action before the second write, which deletes old registers. The first one creates the new register."""
    ours.ensemble.before_writes = lambda: setattr(ours.ensemble, "before_writes", action)


_new_names = (f"new-{number}" for number in itertools.count())
