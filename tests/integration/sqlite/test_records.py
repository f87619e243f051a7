"""Hazard: a clock, a restart or a power cut loses a record, or expired records fill the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.core.ports import Record, StoreMissing
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.sqlite.conftest import Store

OURS, THEIRS = Record("a" * 32, "{}"), Record("b" * 32, "[]")


@pytest.fixture
def verbs(store: Store) -> Iterator[Verbs]:
    verbs = Verbs(store.url)
    yield verbs
    verbs.close()


def test_reading_a_record_does_not_create_the_file(store: Store, verbs: Verbs) -> None:
    with pytest.raises(StoreMissing):
        verbs.read_record("a")

    assert list(store.path.parent.iterdir()) == []


def test_a_record_outlives_a_reboot_and_then_ends_by_the_wall_clock(store: Store) -> None:
    first = Verbs(store.url)
    first.swap_record("expired", "", OURS)
    first.swap_record("kept", "", OURS)
    first.close()
    store.query("UPDATE records SET until = until - 1000 WHERE name = 'expired'")
    store.query("UPDATE records SET expires = 1e9")  # as if written after a long uptime
    store.query("UPDATE tickets SET session = 'another boot' WHERE name = ''")

    second = Verbs(store.url)

    assert second.swap_record("expired", "", THEIRS) == THEIRS
    assert second.swap_record("kept", "", THEIRS) == OURS
    second.close()


@pytest.mark.parametrize("change", ["- 1e6", "+ 1e6"])
def test_a_wall_clock_that_is_set_neither_ends_nor_keeps_a_record(change: str, store: Store, verbs: Verbs) -> None:
    verbs.swap_record("kept", "", OURS)
    verbs.swap_record("expired", "", OURS, keep=0.0)
    store.query(f"UPDATE records SET until = until {change}")  # noqa: S608

    verbs.swap_record("other", "", OURS)

    assert verbs.read_record("kept") == OURS
    assert verbs.read_record("expired") is None


def test_expired_records_are_removed_when_others_are_written(store: Store, verbs: Verbs) -> None:
    for number in range(150):
        verbs.swap_record(str(number), "", OURS, keep=0.0)
    verbs.swap_record("kept", "", OURS)

    verbs.swap_record("other", "", OURS, keep=0.0)

    assert store.query("SELECT name FROM records ORDER BY name") == [("kept",), ("other",)]


def test_a_repeated_write_is_durable_too(store: Store, verbs: Verbs) -> None:
    # The first commit may have failed after other transactions could read it.
    verbs.swap_record("a", "", OURS, keep=1.0)

    verbs.swap_record("a", "", OURS, keep=1000.0)

    ((remaining,),) = store.query("SELECT until - unixepoch() FROM records")
    assert isinstance(remaining, float)
    assert remaining > 900
