"""Hazard: two transactions are both the first for one key, or a key is committed without its effects."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pymysql
import pytest
import sqlalchemy.exc
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import holdfast
from holdfast import sql
from tests.integration.sql.conftest import Database, LibraryConnection
from tests.support.postgresql import shared as postgresql

HELD = 0.3  # seconds after which a call that has not returned counts as blocked
NAMES = ["a", "A", "a ", "á", "a\0", "'", "%", "%s", ":value", "?", "x" * 512, "😀" * 512]
DRIVERS = pytest.mark.parametrize(
    "database", [("driver", dialect) for dialect in ("postgresql", "mysql", "sqlite")], indirect=True, ids="-".join
)


def once(connection: LibraryConnection, key: str) -> bool:
    connection.begin()
    return sql.once(connection.native, key)


def in_thread(connection: LibraryConnection, key: str) -> Future[bool]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(once, connection, key)
    pool.shutdown(wait=False)
    return future


def test_one_committed_transaction_is_the_first_for_each_key(database: Database) -> None:
    first, second = database.open(), database.open()

    assert [once(first, name) for name in NAMES] == [True] * len(NAMES)
    assert not once(first, "a"), "the same transaction again"
    first.commit()

    assert [once(second, name) for name in NAMES] == [False] * len(NAMES)
    second.rollback()
    assert not once(first, "a")
    assert once(first, "other")


def test_a_key_is_free_again_when_its_transaction_is_rolled_back(database: Database) -> None:
    connection = database.open()

    assert once(connection, "a")
    connection.execute("INSERT INTO effects VALUES ('a', 1)")
    connection.rollback()

    assert once(connection, "a")
    assert connection.execute("SELECT * FROM effects") == []
    connection.commit()
    assert not once(database.open(), "a")


@pytest.mark.parametrize("commits", [True, False])
def test_a_concurrent_transaction_waits_for_the_end_of_the_first(database: Database, *, commits: bool) -> None:
    first, second = database.open(), database.open()
    assert once(first, "a")

    waiting = in_thread(second, "a")
    with pytest.raises(TimeoutError):
        waiting.result(HELD)
    (first.commit if commits else first.rollback)()

    assert waiting.result(30) is not commits
    second.rollback()


def test_each_key_has_one_effect_when_workers_race_and_roll_back(database: Database) -> None:
    keys = [f"key {number}" for number in range(8)]
    ready = threading.Barrier(4)

    def work(worker: int) -> None:
        connection, dice = database.open(), random.Random(worker)  # noqa: S311  (repeatable, not secret)
        ready.wait(60)
        for key in keys * 4:
            while True:
                try:
                    if once(connection, key):
                        connection.execute(f"INSERT INTO effects VALUES ('{key}', {worker})")  # noqa: S608
                    (connection.rollback if dice.random() < 0.3 else connection.commit)()
                    break
                except (pymysql.err.OperationalError, sqlalchemy.exc.OperationalError) as error:
                    connection.rollback()
                    if "Deadlock" not in str(error):  # of MySQL: the transaction is repeated
                        raise

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, worker) for worker in range(4)]:
            future.result(100)

    effects = database.open().execute("SELECT id FROM effects")
    assert sorted(key for (key,) in effects) == keys


def test_a_connection_in_autocommit_mode_is_refused_and_stores_nothing(database: Database) -> None:
    database.autocommits = True
    connection = database.open()

    with pytest.raises(holdfast.UsageError, match="transaction"):
        sql.once(connection.native, "a")

    assert connection.execute("SELECT * FROM holdfast_once") == []


@DRIVERS
def test_an_explicit_transaction_of_a_connection_in_autocommit_mode_is_accepted(database: Database) -> None:
    database.autocommits = True
    connection = database.open()

    connection.execute("BEGIN")
    assert sql.once(connection.native, "a")
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    assert sql.once(connection.native, "a")
    connection.execute("COMMIT")

    connection.execute("BEGIN")
    assert not sql.once(connection.native, "a")
    connection.execute("COMMIT")


@DRIVERS
def test_a_killed_process_leaves_no_key(database: Database) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child: it dies in the middle of its transaction
        try:
            connection = database._driver()
            os.write(write_end, b"1" if once(connection, "a") else b"0")
            connection.execute("INSERT INTO effects VALUES ('a', 1)")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(read_end, 1) == b"1"
    connection = database.open()
    waiting = in_thread(connection, "a")
    with pytest.raises(TimeoutError):
        waiting.result(HELD)

    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert waiting.result(30)
    assert connection.execute("SELECT * FROM effects") == []
    for end in (read_end, write_end):
        os.close(end)


def test_the_error_of_a_missing_table_names_the_fix(database: Database) -> None:
    connection = database.open()
    connection.begin()

    with pytest.raises(Exception, match=r"missing_table") as caught:
        sql.once(connection.native, "a", table="missing_table")

    (note,) = caught.value.__notes__
    assert "CREATE TABLE IF NOT EXISTS missing_table" in note


def test_old_keys_are_forgotten(database: Database) -> None:
    connection = database.open()
    once(connection, "old")
    once(connection, "new")
    past = {
        "postgresql": "now() - interval '2 days'",
        "mysql": "UTC_TIMESTAMP() - INTERVAL 2 DAY",
        "sqlite": "datetime('now', '-2 days')",
    }
    old = {"postgresql": "'old'::bytea", "mysql": "'old'", "sqlite": "CAST('old' AS BLOB)"}
    update = f"UPDATE holdfast_once SET created = {past[database.dialect]} WHERE name = {old[database.dialect]}"  # noqa: S608
    connection.execute(update.replace("::", "\\:\\:") if database.library in ("sqlalchemy", "session") else update)
    connection.commit()

    connection.begin()
    assert sql.forget_older_than(connection.native, "1d") == 1
    assert sql.forget_older_than(connection.native, "1d") == 0

    assert once(connection, "old")
    assert not once(connection, "new")


def test_a_database_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Database("sqlalchemy", "sqlite", tmp_path)) as database:
        connection = database.open().native
        monkeypatch.setattr(connection.dialect, "name", "oracle")

        with pytest.raises(holdfast.ConfigurationError, match="oracle is not supported"):
            sql.once(connection, "a")


@pytest.mark.parametrize("given", [object(), "postgresql://", None, 7])
def test_an_object_that_is_no_connection_is_refused(given: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="connection must be"):
        sql.once(given, "a")


@DRIVERS
def test_invalid_arguments_are_refused_before_a_statement_is_sent(database: Database) -> None:
    connection = database.open()

    for key, options in (("", {}), ("x" * 513, {}), ("a", {"table": "a; DROP TABLE effects"})):
        with pytest.raises(holdfast.ConfigurationError):
            sql.once(connection.native, key, **options)
    with pytest.raises(holdfast.ConfigurationError, match="age"):
        sql.forget_older_than(connection.native, 0)
    with pytest.raises(holdfast.ConfigurationError, match="dialect"):
        sql.ddl("oracle")
    assert sql.ddl(database.dialect, table="mine.once").startswith("CREATE TABLE IF NOT EXISTS mine.once (")


@pytest.mark.parametrize(
    "database", [("django", dialect) for dialect in ("postgresql", "sqlite")], indirect=True, ids="-".join
)
def test_atomic_blocks_of_django_are_transactions_and_inner_ones_are_savepoints(database: Database) -> None:
    connection = database.open().native
    connections["once"] = connection

    with pytest.raises(ZeroDivisionError), transaction.atomic(using="once"):
        assert sql.once(connections["once"], "a")
        raise ZeroDivisionError
    with transaction.atomic(using="once"):
        assert sql.once(connections["once"], "a")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using="once"):
            assert sql.once(connections["once"], "b")
            raise ZeroDivisionError

    with transaction.atomic(using="once"):
        assert not sql.once(connections["once"], "a")
        assert sql.once(connections["once"], "b")
    del connections["once"]


# ── isolation levels ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_postgresql_refuses_a_snapshot_that_is_older_than_the_key(tmp_path: Path, level: str) -> None:
    database = Database("driver", "postgresql", tmp_path)
    connection, other = database.open(), database.open()
    sql.create_table(connection.native)
    connection.commit()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    connection.execute("SELECT 1 FROM holdfast_once")
    assert sql.once(other.native, "a")
    other.commit()

    with pytest.raises(psycopg.errors.SerializationFailure):
        sql.once(connection.native, "a")

    connection.rollback()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    assert not sql.once(connection.native, "a"), "the caller repeats its transaction"
    database.close()


def test_mysql_sees_the_newest_key_although_its_snapshot_is_older(tmp_path: Path) -> None:
    database = Database("driver", "mysql", tmp_path)
    connection, other = database.open(), database.open()
    sql.create_table(connection.native)
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT 1 FROM holdfast_once")
    assert sql.once(other.native, "a")
    other.commit()

    if connection.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'") == [("innodb_snapshot_isolation", "ON")]:
        with pytest.raises(pymysql.err.OperationalError, match="Record has changed"):
            sql.once(connection.native, "a")
    else:
        assert not sql.once(connection.native, "a")
    database.close()


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def table() -> str:
    name = "once_for_asyncio"
    postgresql.server().rows(sql.ddl("postgresql", table=name).encode())
    postgresql.server().rows(f"TRUNCATE {name}".encode())
    return name


async def test_psycopg_for_asyncio(table: str) -> None:
    url = postgresql.server().url
    async with await psycopg.AsyncConnection.connect(url) as connection:
        assert await sql.once_async(connection, "a", table=table)
        await connection.rollback()
        assert await sql.once_async(connection, "a", table=table)
        await connection.commit()
        assert not await sql.once_async(connection, "a", table=table)
        with pytest.raises(holdfast.UsageError, match="once_async"):
            sql.once(connection, "b")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        with pytest.raises(holdfast.UsageError, match="transaction"):
            await sql.once_async(connection, "b", table=table)
        async with connection.transaction():
            assert await sql.once_async(connection, "b", table=table)


async def test_asyncpg(table: str) -> None:
    async with (
        asyncpg.create_pool(postgresql.server().url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        with pytest.raises(holdfast.UsageError, match="transaction"):
            await sql.once_async(connection, "a", table=table)
        async with connection.transaction():
            assert await sql.once_async(connection, "a", table=table)
            assert not await sql.once_async(connection, "a", table=table)
        with pytest.raises(asyncpg.UndefinedTableError) as caught:
            async with connection.transaction():
                await sql.once_async(connection, "a", table="missing_table")
        assert "create_table" in caught.value.__notes__[0]
    with pytest.raises(holdfast.ConfigurationError, match="connection must be"):
        await sql.once_async(object(), "a")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy_for_asyncio(table: str, driver: str) -> None:
    url = postgresql.server().url.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        assert await sql.once_async(connection, "a", table=table)
    async with AsyncSession(engine) as session, session.begin():
        assert not await sql.once_async(session, "a", table=table)
        assert await sql.once_async(session, "b", table=table)
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(holdfast.UsageError, match="transaction"):
            await sql.once_async(connection, "c", table=table)
    await engine.dispose()
