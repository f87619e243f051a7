"""Hazard: at some isolation level, the write of an old holder replaces a newer one in a database."""

from __future__ import annotations

import asyncio
import random
import threading
import types
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pymysql.constants.CLIENT
import pytest

import holdfast
from holdfast.fencing.http import AsyncSqlFences, SqlFences
from holdfast.fencing.sql import PostgreSQLGuard
from tests.integration.fencing.conftest import Database
from tests.support.postgresql import shared as postgresql

HELD = 0.3  # seconds after which a call that has not returned counts as blocked


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def test_a_smaller_fence_is_refused_and_an_equal_or_greater_one_passes(database: Database) -> None:
    connection = database.connect()
    cursor = connection.cursor()

    for fence in (7, 7, 9, 2**63 - 1):
        database.guard.check(cursor, "stock", fence)
        database.guard.check(cursor, "other", 1)
        connection.commit()

    with pytest.raises(holdfast.StaleFence, match="stop") as caught:
        database.guard.check(cursor, "stock", 9)
    assert (caught.value.resource, caught.value.fence, caught.value.newest) == ("stock", 9, 2**63 - 1)


def test_cursors_that_return_mappings_are_supported(database: Database) -> None:
    cursor = database.connect(mapping=True).cursor()
    database.guard.check(cursor, "stock", 7)

    with pytest.raises(holdfast.StaleFence) as caught:
        database.guard.check(cursor, "stock", 6)

    assert caught.value.newest == 7


def test_resources_with_similar_names_are_distinguished(database: Database) -> None:
    cursor = database.connect().cursor()
    names = ["a", "A", "a ", "ä", "a\0", "a\0b", "🔒", "\N{LATIN SMALL LETTER A}\N{COMBINING DIAERESIS}", "x" * 512]

    for fence, name in enumerate(reversed(names), 1):
        database.guard.check(cursor, name, fence)

    for fence, name in enumerate(reversed(names), 1):
        database.guard.check(cursor, name, fence)


@pytest.mark.parametrize(("late", "passes"), [(4, False), (5, True), (6, True)])
def test_the_next_writer_waits_for_the_commit_and_is_checked_against_its_fence(
    database: Database, late: int, *, passes: bool
) -> None:
    first, second = database.connect(), database.connect()
    database.guard.check(first.cursor(), "stock", 5)

    waiting = in_thread(lambda: database.guard.check(second.cursor(), "stock", late))
    with pytest.raises(TimeoutError):
        waiting.result(HELD)
    first.commit()

    if passes:
        waiting.result(30)
    else:
        with pytest.raises(holdfast.StaleFence):
            waiting.result(30)


def test_a_fence_is_forgotten_when_its_transaction_is_rolled_back(database: Database) -> None:
    first, second = database.connect(), database.connect()
    database.guard.check(first.cursor(), "stock", 5)
    waiting = in_thread(lambda: database.guard.check(second.cursor(), "stock", 4))
    with pytest.raises(TimeoutError):
        waiting.result(HELD)

    first.rollback()

    waiting.result(30)


def test_a_check_outside_of_a_transaction_is_refused(database: Database) -> None:
    connection = database.connect(autocommit=True)

    with pytest.raises(holdfast.UsageError, match="transaction"):
        database.guard.check(connection.cursor(), "stock", 5)

    cursor = connection.cursor()
    cursor.execute("BEGIN")
    database.guard.check(cursor, "stock", 5)
    cursor.execute("ROLLBACK")


class OtherDriverCursor:
    """A cursor as of mysqlclient, which tests do not install: its connection shows only its autocommit mode."""

    def __init__(self, connection: Any) -> None:
        self._cursor = connection.cursor()
        self.connection = types.SimpleNamespace(get_autocommit=connection.get_autocommit)
        self.execute, self.fetchone = self._cursor.execute, self._cursor.fetchone


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
def test_a_driver_of_mysql_without_the_status_of_transactions_is_refused_in_autocommit_mode(database: Database) -> None:
    with pytest.raises(holdfast.UsageError, match="turn autocommit off"):
        database.guard.check(OtherDriverCursor(database.connect(autocommit=True)), "stock", 5)

    database.guard.check(OtherDriverCursor(database.connect()), "stock", 5)


def test_an_older_fence_is_refused_when_the_snapshot_is_older_than_the_newer_fence(database: Database) -> None:
    """The other tests use SQLite with BEGIN IMMEDIATE; this transaction begins with a read."""
    old, new = database.connect(), database.connect()
    cursor = old.cursor()
    database.guard.check(cursor, "stock", 5)
    old.commit()
    begin = {
        "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "sqlite": "BEGIN DEFERRED",
    }
    cursor.execute(begin[database.name])
    cursor.execute("SELECT value FROM register")
    cursor.fetchall()
    if database.name == "sqlite":  # without WAL a reader blocks the commit of the writer
        old.rollback()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("BEGIN DEFERRED")
        cursor.execute("SELECT value FROM register").fetchall()

    database.guard.check(new.cursor(), "stock", 6)
    new.commit()

    with pytest.raises(Exception, match=r"refused fence 5|could not serialize|Record has changed|locked"):
        database.guard.check(cursor, "stock", 5)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # only PostgreSQL has an error for this
def test_postgresql_ends_a_transaction_whose_snapshot_is_older_even_if_its_fence_is_newer(database: Database) -> None:
    old, new = database.connect(), database.connect()
    database.guard.check(new.cursor(), "stock", 5)
    new.commit()
    cursor = old.cursor()
    cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    cursor.execute("SELECT value FROM register")
    database.guard.check(new.cursor(), "stock", 6)
    new.commit()

    with pytest.raises(psycopg.errors.SerializationFailure):
        database.guard.check(cursor, "stock", 7)


@pytest.mark.parametrize("database", ["mysql"], indirect=True)  # MySQL takes the snapshot at the first SELECT
def test_mysql_reads_the_value_of_the_writer_before_when_the_check_comes_first(database: Database) -> None:
    first, second = database.connect(), database.connect()
    database.guard.check(first.cursor(), "stock", 5)
    cursor = second.cursor()

    def check_and_read() -> Any:
        database.guard.check(cursor, "stock", 6)
        cursor.execute("SELECT value FROM register")
        return cursor.fetchone()

    waiting = in_thread(check_and_read)
    with pytest.raises(TimeoutError):
        waiting.result(HELD)
    first.cursor().execute("UPDATE register SET value = 5")
    first.commit()

    assert waiting.result(30) == (5,)


def test_many_writers_with_random_fences_never_restore_an_older_value(database: Database) -> None:
    connections = [database.connect() for _ in range(6)]
    passed: list[list[int]] = [[] for _ in connections]
    refused = [0 for _ in connections]
    start = threading.Barrier(len(connections))
    connection = database.connect()  # create the row, because concurrent inserts of it may deadlock in MySQL
    database.guard.check(connection.cursor(), "register", 1)
    connection.commit()

    def write(number: int) -> None:
        connection, dice = connections[number], random.Random(number)  # noqa: S311  (repeatable, not secret)
        start.wait()
        for step in range(40):
            fence = 1 + step * 10 + dice.randrange(100)
            cursor = connection.cursor()
            try:
                database.guard.check(cursor, "register", fence)
                cursor.execute("SELECT value FROM register")
                assert cursor.fetchone()[0] <= fence
                cursor.execute(f"UPDATE register SET value = {database.placeholder}", (fence,))  # noqa: S608
                connection.commit()
                passed[number].append(fence)
            except holdfast.StaleFence:
                refused[number] += 1
            finally:
                connection.rollback()  # after an error too, so that the other writers do not wait for this one

    with ThreadPoolExecutor(len(connections)) as pool:
        for future in [pool.submit(write, number) for number in range(len(connections))]:
            future.result(60)

    cursor = connection.cursor()
    cursor.execute("SELECT value FROM register")
    assert cursor.fetchone()[0] == max(fence for fences in passed for fence in fences)
    assert sum(refused) > 0
    assert all(fences == sorted(fences) for fences in passed)


# ── a fence in the row itself ────────────────────────────────────────────────────────────────────────────────────────


def update(database: Database, cursor: Any, value: int, fence: int) -> None:
    fenced = database.guard.column("fence")
    assignments = f"value = {database.placeholder}, {fenced.assignment}"
    sql = f"UPDATE register SET {assignments} WHERE id = 1 AND {fenced.condition}"  # noqa: S608
    cursor.execute(sql, (value, fence, fence))
    database.guard.check_updated(cursor, "register", fence)


def test_a_fence_column_refuses_by_the_rowcount(database: Database) -> None:
    flags = {"flags": pymysql.constants.CLIENT.FOUND_ROWS} if database.name == "mysql" else {}
    connection = database.connect(**flags)
    cursor = connection.cursor()

    update(database, cursor, 1, fence=5)  # from NULL
    update(database, cursor, 1, fence=5)  # the same values again
    update(database, cursor, 2, fence=6)
    connection.commit()

    with pytest.raises(holdfast.StaleFence, match="newer") as caught:
        update(database, cursor, 3, fence=5)
    cursor.execute("SELECT value, fence FROM register")
    assert cursor.fetchone() == (2, 6)
    assert caught.value.newest is None


@pytest.mark.parametrize("database", ["mysql"], indirect=True)  # the others count the rows that an UPDATE matches
def test_a_mysql_connection_without_found_rows_is_refused(database: Database) -> None:
    cursor = database.connect().cursor()

    with pytest.raises(holdfast.UsageError, match="FOUND_ROWS"):
        update(database, cursor, 1, fence=5)


def test_a_cursor_without_an_update_is_refused(database: Database) -> None:
    flags = {"flags": pymysql.constants.CLIENT.FOUND_ROWS} if database.name == "mysql" else {}

    with pytest.raises(holdfast.UsageError, match="rowcount"):
        database.guard.check_updated(database.connect(**flags).cursor(), "register", 5)


def test_a_time_limit_of_the_server_does_not_end_the_turn_of_a_request(database: Database) -> None:
    if database.name == "sqlite":
        pytest.skip("sqlite has no such limit")
    mine, other = database._connect(), database._connect()  # the store closes them
    limit = {"postgresql": "SET idle_in_transaction_session_timeout = 100", "mysql": "SET SESSION wait_timeout = 1"}
    mine.cursor().execute(limit[database.name])
    mine.commit()
    store = SqlFences(database.guard, lambda: mine)
    done = threading.Event()

    def write_newer() -> None:
        with SqlFences(database.guard, lambda: other).holding("stock", 8):
            done.set()

    with store.holding("stock", 7):
        newer = threading.Thread(target=write_newer)
        newer.start()
        assert not done.wait(0.5 if database.name == "postgresql" else 1.5)
    newer.join()


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_async_cursor_is_checked_in_the_same_way() -> None:
    guard = PostgreSQLGuard(table="awaited_fences")
    async with await psycopg.AsyncConnection.connect(postgresql.server().url) as connection:
        async with connection.cursor() as cursor:
            await cursor.execute(guard.ddl.encode())
            await guard.check_async(cursor, "stock", 7)
            await guard.check_async(cursor, "stock", 7)
            with pytest.raises(holdfast.StaleFence) as caught:
                await guard.check_async(cursor, "stock", 6)
        await connection.rollback()
    assert caught.value.newest == 7


async def test_the_asyncio_store_of_the_http_guard_keeps_its_turn_and_its_fence() -> None:
    guard = PostgreSQLGuard(table=f"fences_{uuid.uuid4().hex}")
    url = postgresql.server().url
    postgresql.server().rows(guard.ddl.encode())
    store = AsyncSqlFences(guard, lambda: psycopg.AsyncConnection.connect(url))
    seen: list[int] = []

    async def request(fence: int) -> None:
        async with store.holding("stock", fence):
            seen.append(fence)

    async with store.holding("stock", 7):
        newer = asyncio.create_task(request(8))
        done, _ = await asyncio.wait([newer], timeout=HELD)
        assert not done
        seen.append(7)
    await newer

    with pytest.raises(ZeroDivisionError):
        async with store.holding("stock", 9):
            raise ZeroDivisionError
    with pytest.raises(holdfast.StaleFence) as caught:
        await request(8)
    assert seen == [7, 8]
    assert caught.value.newest == 9
