"""The checker misses a lost update, or a write of an old holder."""

from __future__ import annotations

from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import FencedWrites
from tests.unit.checking.histories import LOCK, check, find, message, wrote


def test_writes_with_growing_fences_are_allowed() -> None:
    assert not find(FencedWrites, [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y"), wrote(2, "b", 2, "z")])


def test_a_stale_write_must_be_refused() -> None:
    newer = wrote(0, "b", 2, "x")

    assert "although it had seen a greater one" in message(FencedWrites, [newer, wrote(1, "a", 1, "y")])
    assert not find(FencedWrites, [newer, wrote(1, "a", 1, "y", accepted=False)])


def test_a_write_is_refused_only_for_a_greater_fence() -> None:
    assert "although it had seen no greater" in message(FencedWrites, [wrote(0, "a", 1, "x", accepted=False)])
    assert find(FencedWrites, [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y", accepted=False)])


def test_an_older_fence_is_refused_after_a_fenced_read() -> None:
    read = h.Read(0, "b", 2, LOCK, 2, "x")

    assert find(FencedWrites, [read, wrote(1, "a", 1, "y")])
    assert not find(FencedWrites, [read, wrote(1, "a", 1, "y", accepted=False)])


def test_an_update_computed_from_an_older_value_is_found() -> None:
    history: h.History = [wrote(0, "a", 1, "x"), wrote(1, "b", 2, "y", before="x")]

    assert not find(FencedWrites, history)
    assert "which it had computed from 'x'" in message(FencedWrites, [*history, wrote(2, "c", 3, "z", before="x")])


def test_two_holders_with_one_fence_are_not_reported() -> None:
    history: h.History = [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y", before="x")]
    other = wrote(2, "b", 1, "z", before="x")._replace(ticket=2)

    assert not find(FencedWrites, [*history, other]), "whether fences may be equal is for another checker"
    assert find(FencedWrites, [*history, wrote(2, "a", 1, "z", before="x")])


def test_a_read_returns_what_was_written_last() -> None:
    start = wrote(0, "a", 1, "x")

    assert not find(FencedWrites, [start, h.Read(1, "b", 2, LOCK, 2, "x")])
    assert find(FencedWrites, [start, h.Read(1, "b", 2, LOCK, 2, "w")])


def test_the_first_write_replaces_the_value_of_the_first_read() -> None:
    read = h.Read(0, "a", 1, LOCK, 1, "x")

    assert not find(FencedWrites, [read, wrote(1, "a", 1, "y", before="x")])
    assert find(FencedWrites, [read, wrote(1, "a", 1, "y", before="w")])


def test_a_read_without_a_fence_does_not_change_the_resource() -> None:
    read = h.Read(0, "b", 2, LOCK, 2, "x", fenced=False)

    assert not find(FencedWrites, [read, wrote(1, "a", 1, "y")])


def test_refusals_are_counted() -> None:
    checker = check(FencedWrites, [wrote(0, "b", 2, "x"), wrote(1, "a", 1, "y", accepted=False)])

    assert isinstance(checker, FencedWrites)
    assert checker.refused == 1


def test_without_fence_checks_anomalies_are_notes_and_not_violations() -> None:
    history: h.History = [
        event._replace(fenced=False)
        for event in (wrote(0, "a", 1, 1), wrote(1, "b", 2, 2, before=1), wrote(2, "a", 1, 3, before=1))
    ]

    checker = check(FencedWrites, history)

    assert not checker.violations
    assert isinstance(checker, FencedWrites)
    assert (checker.stale_writes, checker.lost_updates) == (1, 1)
    assert len(checker.notes) == 2
