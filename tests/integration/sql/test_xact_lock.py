"""Hazard: two transactions hold one lock, a lock outlives its transaction, or its holder reads an old state."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import holdfast
from holdfast import sql
from tests.integration.sql.conftest import Database, LibraryConnection
from tests.support.postgresql import shared as postgresql

HELD = 0.3  # seconds after which a call that has not returned counts as blocked
LIBRARIES = pytest.mark.parametrize(
    "database",
    [(library, "postgresql") for library in ("driver", "psycopg2", "sqlalchemy", "session", "django")],
    indirect=True,
    ids="-".join,
)
DRIVER = pytest.mark.parametrize("database", [("driver", "postgresql")], indirect=True, ids="-".join)


@pytest.fixture
def name() -> str:
    """A name that no other test on the server uses."""
    return uuid.uuid4().hex


def lock(connection: LibraryConnection, name: str, **options: Any) -> bool:
    connection.begin()
    return sql.xact_lock(connection.native, name, **options)


def in_thread(connection: LibraryConnection, name: str, **options: Any) -> Future[bool]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(lock, connection, name, **options)
    pool.shutdown(wait=False)
    return future


@LIBRARIES
@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
def test_the_lock_is_held_until_the_end_of_the_transaction(database: Database, name: str, ends_by: str) -> None:
    first, second = database.open(), database.open()
    assert lock(first, name)
    assert lock(first, name), "a transaction that has the lock gets it again"
    assert lock(first, name, timeout=0)
    assert lock(second, name + "x", timeout=0), "another name is another lock"

    assert not lock(second, name, timeout=0)
    waiting = in_thread(second, name)
    with pytest.raises(TimeoutError):
        waiting.result(HELD)
    getattr(first, ends_by)()

    assert waiting.result(30)
    assert not lock(first, name, timeout=0)


@LIBRARIES
def test_a_timeout_leaves_the_transaction_and_its_setting_as_they_were(database: Database, name: str) -> None:
    first, second = database.open(), database.open()
    assert lock(first, name)
    second.begin()
    second.execute("INSERT INTO effects VALUES ('kept', 1)")
    second.execute("SET LOCAL lock_timeout = '7s'")

    assert not lock(second, name, timeout=0.05)
    assert second.execute("SHOW lock_timeout") == [("7s",)]
    first.rollback()
    assert lock(second, name, timeout="30s")

    assert second.execute("SHOW lock_timeout") == [("7s",)]
    second.commit()
    assert first.execute("SELECT id FROM effects") == [("kept",)]


@LIBRARIES
def test_shared_holders_hold_the_lock_together_and_exclude_others(database: Database, name: str) -> None:
    first, second, writer = database.open(), database.open(), database.open()

    assert lock(first, name, shared=True)
    assert lock(second, name, shared=True, timeout=5)
    assert not lock(writer, name, timeout=0)
    assert not lock(writer, name, timeout=0.05)
    first.commit()
    second.commit()

    assert lock(writer, name, timeout=0)
    assert not lock(first, name, shared=True, timeout=0)


@LIBRARIES
@pytest.mark.parametrize("timeout", [None, 0, 5])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_with_a_snapshot_is_refused_because_it_may_miss_earlier_commits(
    database: Database, name: str, level: str, timeout: float | None
) -> None:
    connection = database.open()
    connection.begin()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")

    with pytest.raises(holdfast.UsageError, match=f"READ COMMITTED: one with {level}"):
        lock(connection, name, timeout=timeout)

    assert lock(database.open(), name, timeout=0), "the refused call has not acquired the lock"
    assert connection.execute("SELECT 1") == [(1,)], "its transaction continues"


@LIBRARIES
def test_a_call_outside_of_a_transaction_is_refused(database: Database, name: str) -> None:
    database.autocommits = True
    connection = database.open()

    with pytest.raises(holdfast.UsageError, match="xact_lock was called outside of a transaction"):
        sql.xact_lock(connection.native, name)


@DRIVER
def test_a_rollback_to_an_earlier_savepoint_releases_the_lock(database: Database, name: str) -> None:
    first, second = database.open(), database.open()
    first.execute("SAVEPOINT earlier")
    assert lock(first, name, timeout=5)
    assert not lock(second, name, timeout=0)

    first.execute("ROLLBACK TO SAVEPOINT earlier")

    assert lock(second, name, timeout=0)


@DRIVER
def test_a_deadlock_is_the_error_of_the_driver(database: Database, name: str) -> None:
    first, second = database.open(), database.open()
    assert lock(first, name)
    assert lock(second, f"{name}2")

    def lock_or_roll_back(connection: LibraryConnection, name: str) -> bool:
        try:
            return lock(connection, name, timeout=60)
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
            raise

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock_or_roll_back, first, f"{name}2")
        with pytest.raises(psycopg.errors.DeadlockDetected):  # in either transaction
            try:
                lock_or_roll_back(second, name)
            finally:
                assert waiting.result(30)


@DRIVER
def test_workers_that_count_in_turn_lose_no_update(database: Database, name: str) -> None:
    setup = database.open()
    setup.execute("INSERT INTO effects VALUES ('counter', 0)")
    setup.commit()
    ready = threading.Barrier(4)

    def work() -> None:
        connection = database.open()
        ready.wait()
        for _ in range(25):
            assert lock(connection, name)
            ((count,),) = connection.execute("SELECT worker FROM effects")
            connection.execute(f"UPDATE effects SET worker = {count + 1}")  # noqa: S608
            connection.commit()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for _ in range(4)]:
            future.result(60)
    assert setup.execute("SELECT worker FROM effects") == [(100,)]


@DRIVER
def test_a_lease_of_the_same_name_is_another_lock(database: Database, name: str) -> None:
    connection = database.open()
    for method in ("", "&method=advisory"):
        url = f"{postgresql.server().url}?schema={database.schema}{method}"
        with holdfast.Client(url) as client, client.lock(name, timeout=5):
            assert lock(connection, name, timeout=0)
            connection.rollback()


@pytest.mark.parametrize("library", ["driver"])
@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
@DRIVER
def test_other_databases_are_refused(database: Database, library: str, dialect: str, tmp_path: Any) -> None:
    other = Database(library, dialect, tmp_path)
    try:
        with pytest.raises(holdfast.ConfigurationError, match=f"needs PostgreSQL, not {dialect}"):
            lock(other.open(), "a")
    finally:
        other.close()


@DRIVER
@pytest.mark.parametrize(
    ("options", "argument"), [({"timeout": -1}, "timeout"), ({"shared": 1}, "shared"), ({"name": ""}, "name")]
)
def test_invalid_arguments_are_refused(database: Database, options: dict[str, Any], argument: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=argument):
        sql.xact_lock(database.open().native, **{"name": "a", **options})


@pytest.fixture
def holder(database: Database, name: str) -> Iterator[LibraryConnection]:
    connection = database.open()
    assert lock(connection, name)
    yield connection
    connection.rollback()


async def expect_turn(connection: Any, holder: LibraryConnection, name: str) -> None:
    """The holder excludes this connection until its transaction ends."""
    assert not await sql.xact_lock_async(connection, name, timeout=0)
    assert not await sql.xact_lock_async(connection, name, timeout=0.05)
    holder.commit()
    assert await sql.xact_lock_async(connection, name, timeout=30)
    assert await sql.xact_lock_async(connection, name)
    assert not lock(holder, name, timeout=0)


@DRIVER
async def test_psycopg_for_asyncio(holder: LibraryConnection, name: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgresql.server().url) as connection:
        await expect_turn(connection, holder, name)
    async with await psycopg.AsyncConnection.connect(postgresql.server().url, autocommit=True) as connection:
        with pytest.raises(holdfast.UsageError, match="outside of a transaction"):
            await sql.xact_lock_async(connection, name)
        with pytest.raises(holdfast.UsageError, match="is for asyncio"):
            sql.xact_lock(connection, name)


@DRIVER
async def test_asyncpg(holder: LibraryConnection, name: str) -> None:
    connection = await asyncpg.connect(postgresql.server().url)
    try:
        with pytest.raises(holdfast.UsageError, match="outside of a transaction"):
            await sql.xact_lock_async(connection, name)
        async with connection.transaction():
            await expect_turn(connection, holder, name)
    finally:
        await connection.close()


@DRIVER
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy_for_asyncio(holder: LibraryConnection, name: str, driver: str) -> None:
    url = postgresql.server().url.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url)
    try:
        async with AsyncSession(engine) as session:
            await expect_turn(session, holder, name)
    finally:
        await engine.dispose()
