"""Connections of callers: the same interface to the connections of all supported libraries.

`execute` is a coroutine function for each of them. That of a blocking connection never suspends, so `run_sync` runs the
coroutines over it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.errors import ConfigurationError, UsageError
from holdfast.fencing.sql import IDLE, IN_TRANSACTION

DIALECTS = ("postgresql", "mysql", "sqlite")
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


class Result(NamedTuple):
    """The result of a statement."""

    rows: int  # how many
    value: Any = None  # the first column of the first row, if the statement returns rows


class Connection(NamedTuple):
    """A caller's connection."""

    dialect: str  # one of DIALECTS
    mark: str  # the placeholder of a value
    is_outside: bool  # of transactions: each statement would be committed at once
    execute: Callable[[str, Any], Awaitable[Result]]


def require_transaction(function: str, otherwise: str, connection: Connection) -> None:
    """Raise UsageError outside of a transaction; `otherwise` is the reason."""
    if connection.is_outside:
        raise UsageError(
            f"{function} was called outside of a transaction, so {otherwise}: begin a transaction (Django: "
            "transaction.atomic()), or turn autocommit off"
        )


def adapted(connection: Any, for_asyncio: str) -> Connection:
    """The interface to a connection of any supported library. `for_asyncio` is the function for asyncio, for a message.

    Raises:
        ConfigurationError: this object is no connection, or of a library or a database that is not supported.
        UsageError: it is for asyncio.
    """
    libraries = _libraries(connection)
    if "sqlalchemy" in libraries or ("django" in libraries and hasattr(connection, "in_atomic_block")):
        interface = _sqlalchemy(connection) if "sqlalchemy" in libraries else _django(connection)
        if interface.dialect not in DIALECTS:
            raise ConfigurationError(f"{interface.dialect} is not supported: use one of {', '.join(DIALECTS)}")
        return interface
    driver = _driver_of(connection)
    if driver is None or not hasattr(connection, "cursor") or driver == "asyncpg":
        raise _unsupported(connection)
    if inspect.iscoroutinefunction(connection.commit):
        raise UsageError(f"{type(connection).__name__} is for asyncio: await holdfast.sql.{for_asyncio}")
    return Connection(
        _DRIVERS[driver],
        "?" if driver == "sqlite3" else "%s",
        _is_outside(driver, connection),
        functools.partial(_execute, connection),
    )


def adapted_async(connection: Any) -> Connection:
    """The same for a connection of psycopg or asyncpg, for asyncio. Its dialect is PostgreSQL's.

    Raises:
        ConfigurationError: this object is no such connection.
    """
    driver = _driver_of(connection)
    if driver == "asyncpg":

        async def fetch(sql: str, values: Any) -> Result:
            if sql.startswith("SELECT"):
                return Result(1, await connection.fetchval(sql, *values))
            words = (await connection.execute(sql, *values)).split()
            return Result(int(words[-1]) if words[-1].isdigit() else 0)

        return Connection("postgresql", "$1", not connection.is_in_transaction(), fetch)
    if driver != "psycopg" or not inspect.iscoroutinefunction(connection.commit):
        raise ConfigurationError(
            f"connection must be an AsyncConnection of psycopg, a connection of asyncpg, or an AsyncConnection or "
            f"AsyncSession of SQLAlchemy, not {type(connection).__name__}"
        )

    async def execute(sql: str, values: Any) -> Result:
        async with connection.cursor() as cursor:
            await cursor.execute(sql, values)
            return Result(cursor.rowcount, (await cursor.fetchone())[0] if cursor.description else None)

    return Connection("postgresql", "%s", _is_outside(driver, connection), execute)


def sql_states(error: BaseException) -> set[object]:
    """The SQLSTATE and error numbers of an error. SQLAlchemy and Django wrap the driver's error."""
    causes = [cause for cause in (error, getattr(error, "orig", None), error.__cause__) if cause is not None]
    causes += [cause.__cause__ for cause in causes if cause.__cause__ is not None]
    codes = {getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) for cause in causes}
    return codes | {cause.args[0] for cause in causes if cause.args and isinstance(cause.args[0], int)}


def _sqlalchemy(connection: Any) -> Connection:
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

    async def execute(sql: str, values: Any) -> Result:
        result = connection.execute(text(sql), dict(zip(("value",), values, strict=False)))
        return Result(result.rowcount, result.scalar() if result.returns_rows else None)

    dialect = connection.dialect.name
    return Connection("mysql" if dialect == "mariadb" else dialect, ":value", is_outside, execute)


def _django(connection: Any) -> Connection:
    """A connection of django.db.connections, or django.db.connection."""
    is_outside = connection.get_autocommit() and not connection.in_atomic_block
    return Connection(connection.vendor, "%s", is_outside, functools.partial(_execute, connection))


async def _execute(connection: Any, sql: str, values: Any) -> Result:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return Result(cursor.rowcount, cursor.fetchone()[0] if cursor.description else None)


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


def _unsupported(connection: Any) -> ConfigurationError:
    return ConfigurationError(f"connection must be {_SUPPORTED}, not {type(connection).__name__}")
