"""Once for a key, as a row in the caller's own transaction: exactly once for what that transaction writes.

    with psycopg.connect(url) as connection:                    # one transaction
        if holdfast.sql.once(connection, f"invoice:{invoice}"):
            connection.execute("UPDATE accounts SET …")

The row and the caller's writes are committed together, or not at all. So there is no lock, no lease and no interrupted
run: a process that dies in the middle leaves nothing, and the next call runs. docs/once.md explains isolation levels.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.names import check_duration, check_name, shown
from holdfast.errors import ConfigurationError, UsageError
from holdfast.fencing.sql import IDLE, IN_TRANSACTION
from holdfast.fencing.values import check_identifier

TABLE = "holdfast_once"


class _Dialect(NamedTuple):
    """The statements for one kind of server. The key is bytes, which no collation folds or pads."""

    ddl: str
    insert: str  # inserts no row if there is one; if another transaction has inserted one, waits for its end
    delete: str


_DIALECTS = {
    "postgresql": _Dialect(
        "CREATE TABLE IF NOT EXISTS {table} (name bytea PRIMARY KEY, created timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO {table} (name) VALUES ({mark}) ON CONFLICT DO NOTHING",
        "DELETE FROM {table} WHERE created < now() - {mark} * interval '1 second'",
    ),
    # Without the index, a DELETE under REPEATABLE READ would lock all rows, and the gaps that new ones go into.
    "mysql": _Dialect(
        "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(2048) PRIMARY KEY, created DATETIME NOT NULL, "
        "KEY (created)) ENGINE=InnoDB",
        "INSERT IGNORE INTO {table} (name, created) VALUES ({mark}, UTC_TIMESTAMP())",
        "DELETE FROM {table} WHERE created < UTC_TIMESTAMP() - INTERVAL {mark} SECOND",
    ),
    "sqlite": _Dialect(
        "CREATE TABLE IF NOT EXISTS {table} (name BLOB PRIMARY KEY NOT NULL, created TEXT NOT NULL DEFAULT "
        "CURRENT_TIMESTAMP)",
        "INSERT INTO {table} (name) VALUES ({mark}) ON CONFLICT DO NOTHING",
        "DELETE FROM {table} WHERE created < datetime('now', '-' || {mark} || ' seconds')",
    ),
}
_DRIVERS = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "asyncpg": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "sqlite3": "sqlite",
}
_SUPPORTED = (
    "a connection of psycopg, PyMySQL, mysqlclient or sqlite3, a connection or session of SQLAlchemy, or a connection "
    "of Django"
)


class _Connection(NamedTuple):
    """A caller's connection."""

    dialect: str  # a key of _DIALECTS
    mark: str  # the placeholder of a value
    is_outside: bool  # of transactions: each statement would be committed at once
    execute: Callable[[str, Any], int]  # returns the count of rows


def once(connection: Any, key: str, *, table: str = TABLE) -> bool:
    """Whether the caller's transaction is the one for this key: for each key, one committed transaction gets True.

    If another transaction has got True for the key and is still open, this waits for its end: then it returns False if
    that was committed, True if it was rolled back. Call it before anything is read or written. An error of the database
    (deadlock, serialization failure, lock timeout) is raised as the driver's own error: roll back, and retry.

    `connection` is a connection of psycopg, psycopg2, PyMySQL, mysqlclient or sqlite3, a connection or session of
    SQLAlchemy 2, or a connection of Django. The table is created by `create_table`, or by a migration with `ddl`.

    Raises:
        UsageError: the connection is in autocommit mode, so the row would be committed without the caller's writes.
        ConfigurationError: this object is no such connection, or the key or the table is no valid name.
    """
    adapted, name = _adapted(connection), _checked(key)
    _require_transaction(is_outside=adapted.is_outside)
    return _is_first(_execute(adapted, _DIALECTS[adapted.dialect].insert, (name,), table))


async def once_async(connection: Any, key: str, *, table: str = TABLE) -> bool:
    """The same as `once` for asyncio.

    `connection` is an AsyncConnection of psycopg, a connection of asyncpg, or an AsyncConnection or AsyncSession of
    SQLAlchemy.
    """
    name = _checked(key)
    if hasattr(connection, "run_sync"):  # of SQLAlchemy
        is_first: bool = await connection.run_sync(lambda own: once(own, key, table=table))
        return is_first
    driver = _driver_of(connection)
    if driver != "asyncpg" and (driver != "psycopg" or not inspect.iscoroutinefunction(connection.commit)):
        raise ConfigurationError(
            f"connection must be an AsyncConnection of psycopg, a connection of asyncpg, or an AsyncConnection or "
            f"AsyncSession of SQLAlchemy, not {type(connection).__name__}"
        )
    try:
        if driver == "asyncpg":
            _require_transaction(is_outside=not connection.is_in_transaction())
            tag = await connection.execute(_filled(_DIALECTS["postgresql"].insert, "$1", table), name)
            return _is_first(int(tag.split()[-1]))  # INSERT 0 1
        _require_transaction(is_outside=_is_outside(driver, connection))
        async with connection.cursor() as cursor:
            await cursor.execute(_filled(_DIALECTS["postgresql"].insert, "%s", table), (name,))
            return _is_first(cursor.rowcount)
    except Exception as error:
        _explain(error, "postgresql", table)
        raise


def create_table(connection: Any, *, table: str = TABLE) -> None:
    """Create the table if it does not exist. MySQL commits the current transaction then: do it at deployment."""
    adapted = _adapted(connection)
    _execute(adapted, _DIALECTS[adapted.dialect].ddl, (), table)


def ddl(dialect: str, *, table: str = TABLE) -> str:
    """The statement that creates the table, for a migration. `dialect` is "postgresql", "mysql" or "sqlite"."""
    if dialect not in _DIALECTS:
        raise ConfigurationError(f"dialect must be one of {', '.join(_DIALECTS)}, not {shown(dialect)}")
    return _filled(_DIALECTS[dialect].ddl, "", table)


def forget_older_than(connection: Any, age: object, *, table: str = TABLE) -> int:
    """Forget all keys that are older than this, such as "30d", by the clock of the database; how many there were.

    A forgotten key can be used again. `age` has to be longer than the time in which a duplicate may arrive.
    """
    adapted, seconds = _adapted(connection), check_duration("age", age)
    if seconds <= 0:
        raise ConfigurationError(f"age must be more than 0, not {shown(age)}")
    return _execute(adapted, _DIALECTS[adapted.dialect].delete, (math.ceil(seconds),), table)


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _adapted(connection: Any) -> _Connection:
    """The connection, whatever library it is of.

    Raises:
        ConfigurationError: this object is no connection, or of a library or a database that is not supported.
    """
    libraries = _libraries(connection)
    if "sqlalchemy" in libraries or ("django" in libraries and hasattr(connection, "in_atomic_block")):
        adapted = _sqlalchemy(connection) if "sqlalchemy" in libraries else _django(connection)
        if adapted.dialect not in _DIALECTS:
            raise ConfigurationError(f"{adapted.dialect} is not supported: use one of {', '.join(_DIALECTS)}")
        return adapted
    driver = _driver_of(connection)
    if driver is None or not hasattr(connection, "cursor") or driver == "asyncpg":
        raise _unsupported(connection)
    if inspect.iscoroutinefunction(connection.commit):
        raise UsageError(f"{type(connection).__name__} is for asyncio: await holdfast.sql.once_async")
    return _Connection(
        _DRIVERS[driver],
        "?" if driver == "sqlite3" else "%s",
        _is_outside(driver, connection),
        lambda sql, values: _row_count(connection, sql, values),
    )


def _sqlalchemy(connection: Any) -> _Connection:
    """A Connection or a Session, whose transaction begins here at the latest."""
    from sqlalchemy import text

    if not hasattr(connection, "exec_driver_sql"):
        if not hasattr(connection, "connection") or not hasattr(connection, "flush"):
            raise _unsupported(connection)
        connection = connection.connection()
    raw = connection.connection.dbapi_connection
    driver = _driver_of(raw)
    is_outside = (
        _is_outside(driver, raw)
        if driver is not None and "sqlalchemy" not in _libraries(raw)
        else getattr(raw, "autocommit", False) is True
    )

    def execute(sql: str, values: Any) -> int:
        count: int = connection.execute(text(sql), dict(zip(("value",), values, strict=False))).rowcount
        return count

    dialect = connection.dialect.name
    return _Connection("mysql" if dialect == "mariadb" else dialect, ":value", is_outside, execute)


def _django(connection: Any) -> _Connection:
    """A connection of django.db.connections, or django.db.connection."""
    is_outside = connection.get_autocommit() and not connection.in_atomic_block

    return _Connection(connection.vendor, "%s", is_outside, lambda sql, values: _row_count(connection, sql, values))


def _driver_of(connection: Any) -> str | None:
    return next((driver for driver in _DRIVERS if driver in _libraries(connection)), None)


def _libraries(connection: Any) -> set[str]:
    """The top packages of its class and of the classes that it is derived from."""
    return {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}


def _is_outside(driver: str, connection: Any) -> bool:
    """Whether a statement of the connection would be committed at once."""
    if driver in ("psycopg", "psycopg2"):
        return bool(connection.autocommit) and connection.info.transaction_status == IDLE
    if driver == "sqlite3":
        autocommit = getattr(connection, "autocommit", -1)  # since Python 3.12; -1: isolation_level decides
        begins = autocommit is False or (autocommit == -1 and connection.isolation_level is not None)
        return not begins and not connection.in_transaction
    status = getattr(connection, "server_status", 0)  # of PyMySQL
    return bool(connection.get_autocommit()) and not status & IN_TRANSACTION


def _require_transaction(*, is_outside: bool) -> None:
    if is_outside:
        raise UsageError(
            "once was called outside of a transaction, so the key would be committed without your writes: begin a "
            "transaction (Django: transaction.atomic()), or turn autocommit off"
        )


def _unsupported(connection: Any) -> ConfigurationError:
    return ConfigurationError(f"connection must be {_SUPPORTED}, not {type(connection).__name__}")


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(key: str) -> bytes:
    return check_name(key, "key").encode()


def _filled(sql: str, mark: str, table: str) -> str:
    check_identifier("table", table)
    return sql.format(table=table, mark=mark)


def _execute(connection: _Connection, sql: str, values: tuple[Any, ...], table: str) -> int:
    try:
        return connection.execute(_filled(sql, connection.mark, table), values)
    except Exception as error:
        _explain(error, connection.dialect, table)
        raise


def _row_count(connection: Any, sql: str, values: Any) -> int:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        count: int = cursor.rowcount
        return count


def _is_first(row_count: int) -> bool:
    if row_count not in (0, 1):
        raise UsageError("the driver does not report how many rows were inserted (psycopg: leave the pipeline mode)")
    return row_count == 1


def _explain(error: BaseException, dialect: str, table: str) -> None:
    """Add the fix to the error of a missing table. SQLAlchemy and Django wrap the driver's error."""
    causes = [error, getattr(error, "orig", None), error.__cause__]
    if any(
        getattr(cause, "sqlstate", getattr(cause, "pgcode", None)) == "42P01"
        or (getattr(cause, "args", ()) or (None,))[0] == 1146  # noqa: PLR2004  (MySQL's ER_NO_SUCH_TABLE)
        or "no such table" in str(cause)
        for cause in causes
        if cause is not None
    ):
        error.add_note(f"holdfast.sql.create_table creates it; for a migration: {ddl(dialect, table=table)}")
