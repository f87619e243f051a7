"""The resource behind the lock: an update is lost, or a guard lets an old holder write."""

from __future__ import annotations

from holdfast.checking import history as h
from holdfast.checking.checkers import FencedWrites
from tests.unit.checking.stories import LOCK, check, found, what, wrote


def test_writes_with_growing_fences_are_fine() -> None:
    assert not found(FencedWrites, [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y"), wrote(2, "b", 2, "z")])


def test_a_stale_write_must_be_refused() -> None:
    newer = wrote(0, "b", 2, "x")

    assert "although it had seen a greater one" in what(FencedWrites, [newer, wrote(1, "a", 1, "y")])
    assert not found(FencedWrites, [newer, wrote(1, "a", 1, "y", accepted=False)])


def test_a_write_is_refused_only_for_a_greater_fence() -> None:
    assert "although it had seen no greater" in what(FencedWrites, [wrote(0, "a", 1, "x", accepted=False)])
    assert found(FencedWrites, [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y", accepted=False)])


def test_a_fenced_read_counts_as_seen() -> None:
    read = h.Read(0, "b", 2, LOCK, 2, "x")

    assert found(FencedWrites, [read, wrote(1, "a", 1, "y")])
    assert not found(FencedWrites, [read, wrote(1, "a", 1, "y", accepted=False)])


def test_an_update_is_lost_if_its_writer_knew_only_an_older_value() -> None:
    history: h.History = [wrote(0, "a", 1, "x"), wrote(1, "b", 2, "y", before="x")]

    assert not found(FencedWrites, history)
    assert "which it had worked out from 'x'" in what(FencedWrites, [*history, wrote(2, "c", 3, "z", before="x")])


def test_two_holders_with_one_fence_are_not_the_resource_s_fault() -> None:
    history: h.History = [wrote(0, "a", 1, "x"), wrote(1, "a", 1, "y", before="x")]
    other = wrote(2, "b", 1, "z", before="x")._replace(ticket=2)

    assert not found(FencedWrites, [*history, other]), "whether that may be is for the fences' own promise"
    assert found(FencedWrites, [*history, wrote(2, "a", 1, "z", before="x")])


def test_a_read_returns_what_was_written_last() -> None:
    start = wrote(0, "a", 1, "x")

    assert not found(FencedWrites, [start, h.Read(1, "b", 2, LOCK, 2, "x")])
    assert found(FencedWrites, [start, h.Read(1, "b", 2, LOCK, 2, "w")])


def test_what_was_read_first_is_what_the_first_writer_replaces() -> None:
    read = h.Read(0, "a", 1, LOCK, 1, "x")

    assert not found(FencedWrites, [read, wrote(1, "a", 1, "y", before="x")])
    assert found(FencedWrites, [read, wrote(1, "a", 1, "y", before="w")])


def test_a_read_that_shows_no_fence_leaves_no_trace() -> None:
    read = h.Read(0, "b", 2, LOCK, 2, "x", fenced=False)

    assert not found(FencedWrites, [read, wrote(1, "a", 1, "y")])


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
