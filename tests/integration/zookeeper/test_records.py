"""Hazard: an answer is lost, old records stay, or a client that has read an old record overwrites the new node."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

import holdfast
from holdfast.backends.zookeeper.port import Delete
from holdfast.core.ports import RECORD_MAX, Record
from holdfast.core.tickets import Granted
from holdfast.runtimes.threads import run_sync
from tests.integration.zookeeper.harness import Harness, harness, soon, ticket
from tests.support.zookeeper.ensembles import ProxiedEnsemble

FIRST, SECOND, THIRD = (Record(digit * 32, f"[{digit}]") for digit in "123")
SHORT = 0.001  # seconds to keep a record that has expired as soon as the server's clock has advanced
ALWAYS, NEVER = 0.0, 0.99  # values of jitter: search for old records, or not


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as created:
        created.runtime.fixed = NEVER
        yield created


def digits(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:2]


def neighbours(name: str) -> Iterator[str]:
    """Names with the same parent."""
    return (other for number in itertools.count() if digits(other := f"{name}-{number}") == digits(name))


def siblings(ours: Harness, name: str) -> list[str]:
    return sorted(ours.children(f"%marks/%records/{digits(name)}"))


def test_a_read_needs_one_round_trip_and_a_write_two(ours: Harness) -> None:
    ours.swap_record("other", "", FIRST)
    ours.round_trips()

    assert ours.swap_record("a", "", None) is None
    assert ours.round_trips() == 1
    ours.swap_record("a", "", FIRST)
    ours.swap_record("a", FIRST.nonce, SECOND)
    ours.swap_record("a", SECOND.nonce, None)
    assert ours.round_trips() == 6


def test_a_read_creates_nothing(ours: Harness) -> None:
    assert ours.swap_record("a", "", None) is None

    assert ours.children("") == []
    assert ours.children("%marks") == []


def test_a_swap_is_found_by_its_nonce_when_the_answer_was_lost(ours: Harness) -> None:
    ours.swap_record("other", "", FIRST)
    before_write(ours, lambda: setattr(ours.ensemble, "lose_write_answers", True))
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.swap_record("a", "", FIRST)
    ours.ensemble.lose_write_answers = False

    assert ours.swap_record("a", "", SECOND) == FIRST
    assert ours.swap_record("a", "", FIRST) == FIRST


@pytest.mark.parametrize("expected", ["", FIRST.nonce])
def test_a_swap_between_read_and_write_is_detected(url: str, ours: Harness, expected: str) -> None:
    with harness(url) as other:
        if expected:
            ours.swap_record("a", "", FIRST)
        before_write(ours, lambda: other.swap_record("a", expected, SECOND))

        assert ours.swap_record("a", expected, THIRD) == SECOND
        before_write(ours, lambda: other.swap_record("a", SECOND.nonce, None))
        assert ours.swap_record("a", SECOND.nonce, THIRD) is None


@pytest.mark.parametrize("raw", ["no", "yes"])
def test_records_are_not_listed_as_locks(url: str, raw: str) -> None:
    with harness(f"{url}?raw_names={raw}") as ours:
        for name in ("a", "x/y", "%", "n-lock-0000000001"):
            assert ours.swap_record(name, "", FIRST) == FIRST

        assert ours.locked() == []
        assert isinstance(ours.try_acquire(ticket("a")), Granted)
        assert ours.locked() == ["a"]


def test_the_clock_is_created_again_when_an_operator_has_deleted_it(url: str, ours: Harness) -> None:
    ours.swap_record("a", "", FIRST)
    delete(ours, "%marks/%clock")

    assert ours.swap_record("a", "", None) == FIRST
    assert "%clock" in ours.children("%marks")


def test_registers_stay_when_records_are_next_to_them(ours: Harness) -> None:
    ours.runtime.fixed = ALWAYS
    ours.swap_record("a", "", FIRST)

    for number in range(5):
        assert ours.advance_register(f"once:{number}", 1)

    assert ours.swap_record("a", "", None) == FIRST
    assert ours.read_registers(*(f"once:{number}" for number in range(5))) == [1] * 5


# ── old records ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_expired_and_removed_records_are_deleted_while_new_ones_are_created(ours: Harness) -> None:
    names = neighbours("a")
    removed, expired, kept, *new = itertools.islice(names, 30)
    ours.swap_record(removed, "", FIRST)
    ours.swap_record(removed, FIRST.nonce, None)
    ours.swap_record(expired, "", FIRST, keep=SHORT)
    ours.swap_record(kept, "", Record(FIRST.nonce, "x" * RECORD_MAX))
    wait_until_expired(ours, expired)
    assert siblings(ours, "a") == sorted([removed, expired, kept])

    ours.runtime.fixed = ALWAYS
    for name in new:
        ours.swap_record(name, "", SECOND)

    assert siblings(ours, "a") == sorted([kept, *new])


def test_an_expired_record_stays_when_it_is_written_before_its_delete(url: str, ours: Harness) -> None:
    names = neighbours("a")
    with harness(url) as other:
        ours.swap_record("a", "", FIRST, keep=SHORT)
        wait_until_expired(ours, "a")
        ours.runtime.fixed = ALWAYS
        # The first call reads, the second creates the new record, the third deletes the old one.
        before_delete = functools.partial(other.swap_record, "a", "", SECOND)
        before_write(ours, lambda: setattr(ours.ensemble, "before_writes", before_delete))

        assert ours.swap_record(next(names), "", FIRST) == FIRST
        assert ours.ensemble.before_writes is None, "no search took place"
        assert ours.swap_record("a", "", None) == SECOND


def test_a_record_that_was_created_again_is_not_overwritten_by_a_reader_of_the_old_one(url: str, ours: Harness) -> None:
    names = neighbours("a")
    with harness(url) as other:
        other.runtime.fixed = ALWAYS
        ours.swap_record("a", "", FIRST, keep=SHORT)
        wait_until_expired(ours, "a")

        def delete_and_create() -> None:
            other.swap_record(next(names), "", FIRST)
            assert "a" not in siblings(other, "a")
            other.swap_record("a", "", SECOND)

        before_write(ours, delete_and_create)

        assert ours.swap_record("a", "", THIRD) == SECOND


def test_one_of_many_clients_replaces_on_three_servers_while_old_records_are_deleted(ensemble: ProxiedEnsemble) -> None:
    winners: list[tuple[int, int]] = []
    url = ensemble.url(session_timeout=40)
    ready = threading.Barrier(4)

    def swap_all(number: int) -> None:
        names = neighbours("a")
        with harness(url) as own:
            own.runtime.fixed = ALWAYS
            for turn in range(10):
                record = Record(f"{number:016x}{turn:016x}", "{}")
                own.swap_record(f"{next(names)}", "", record, keep=SHORT)
                ready.wait(60)
                if own.swap_record("a", f"{turn - 1:032x}" if turn else "", record) == record:
                    winners.append((turn, number))
                ready.wait(60)
                own.swap_record("a", record.nonce, Record(f"{turn:032x}", ""))
                ready.wait(60)

    threads = [threading.Thread(target=swap_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert [turn for turn, _ in winners] == list(range(10))


def before_write(ours: Harness, action: Callable[[], object]) -> None:
    """Call the action between the first round trip of a swap, which reads, and the second one, which writes."""
    ours.ensemble.before_writes = lambda: setattr(ours.ensemble, "before_writes", action)


def wait_until_expired(ours: Harness, name: str) -> None:
    for _ in range(1000):
        if ours.swap_record(name, "", None) is None:
            return
    pytest.fail("the server's clock does not advance")


def delete(ours: Harness, path: str) -> None:
    (session,) = ours.ensemble.sessions
    run_sync(ours.ensemble.call(session, (Delete(f"{ours.root}/{path}"),), deadline=soon()))
