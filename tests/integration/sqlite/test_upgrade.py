"""Hazard: a lock file of an older holdfast becomes unusable, or is changed while older programs use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from holdfast.backends.sqlite.io import sessions
from holdfast.backends.sqlite.io.file_system import boot_id
from holdfast.core.ports import Record
from holdfast.core.tickets import Granted, Waiting
from holdfast.errors import BackendUnavailable
from holdfast.runtimes import system
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.sqlite.conftest import Store

_SCHEMA = "SELECT name, replace(sql, ' IF NOT EXISTS', '') FROM sqlite_schema WHERE name <> 'tickets' ORDER BY 1"
VERSION_3 = """
CREATE TABLE tickets (
    name TEXT NOT NULL, number INTEGER NOT NULL, nonce TEXT NOT NULL, session TEXT NOT NULL, fence INTEGER,
    exclusive INTEGER NOT NULL, "limit" INTEGER, expires REAL NOT NULL, since REAL NOT NULL, agent TEXT NOT NULL,
    info TEXT NOT NULL, PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID
"""


@pytest.fixture
def old(store: Store) -> Iterator[sessions.Session]:
    """A program with an older holdfast: its file, a lock that it holds, and its session."""
    store.sessions.mkdir()
    session = sessions.Session(str(store.sessions), "5e55105e55105e55105e55105e55105e")
    file = sqlite3.connect(store.path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute(VERSION_3)
    file.execute(
        "INSERT INTO tickets VALUES ('', 0, 'file', ?, 9007199254740991, 0, NULL, 9e15, 0.0, '', '')", (boot_id(),)
    )
    file.execute(
        "INSERT INTO tickets VALUES ('one', 5, 'n', ?, 5, 1, 1, ?, 0.0, 'a', '{}')",
        (session.name, system.now() + 100.0),
    )
    file.execute("PRAGMA user_version = 3")
    file.close()
    yield session
    session.close()


def test_an_old_file_is_upgraded_and_its_fences_continue(store: Store, old: sessions.Session) -> None:
    old.abandon()  # as if the older program had died

    verbs = Verbs(store.url)
    outcome = verbs.try_acquire(verbs.ticket("one", owner="x", delay=1.0))

    assert isinstance(outcome, Granted)
    assert outcome.fence > 9007199254740991
    assert verbs.advance_register("one", 1)
    assert store.query("PRAGMA user_version") == [(6,)]
    verbs.close()


def test_an_upgraded_file_has_the_same_columns_as_a_new_one(store: Store, old: sessions.Session) -> None:
    old.abandon()
    verbs, new = Verbs(store.url), Store(store.path.with_name("new.db"))
    verbs.read_registers("one")
    verbs.close()
    verbs = Verbs(new.url)
    verbs.read_registers("one")
    verbs.close()

    assert store.query(_SCHEMA) == new.query(_SCHEMA)
    assert store.query("PRAGMA table_info(tickets)") == new.query("PRAGMA table_info(tickets)")


def test_a_file_without_records_is_upgraded_by_a_write_and_has_none_for_a_reader(store: Store) -> None:
    first = Verbs(store.url)
    first.advance_register("one", 7)
    first.close()
    store.query("DROP TABLE records")
    store.query("ALTER TABLE tickets DROP COLUMN ttl")
    store.query("PRAGMA user_version = 4")

    second = Verbs(store.url)

    assert second.read_record("one") is None
    assert store.query("PRAGMA user_version") == [(4,)]
    assert second.swap_record("one", "", Record("a" * 32, "{}")) == Record("a" * 32, "{}")
    assert second.read_registers("one") == [7]
    assert store.query("PRAGMA user_version") == [(6,)]
    second.close()


def test_tickets_of_a_session_without_a_fifo_are_kept(store: Store, old: sessions.Session) -> None:
    # Without the FIFO the ttl decides, before and after the upgrade.
    old.close()

    verbs = Verbs(store.url)

    assert isinstance(verbs.try_acquire(verbs.ticket("one"), queue=False), Waiting)
    verbs.close()


def test_a_file_is_not_upgraded_while_an_older_program_uses_it(store: Store, old: sessions.Session) -> None:
    verbs = Verbs(store.url)

    with pytest.raises(BackendUnavailable, match="end them first"):
        verbs.try_acquire(verbs.ticket("two"))

    assert store.query("PRAGMA user_version") == [(3,)]
    assert store.tickets == 1
    old.abandon()
    assert isinstance(verbs.try_acquire(verbs.ticket("two")), Granted)  # after the older program has ended
    verbs.close()
