"""Once for a key, as a row in the caller's own transaction: exactly once for what that transaction writes.

The row and the caller's writes are committed together, or not at all. So there is no lock, no lease and no interrupted
run: a process that dies in the middle leaves nothing, and the next call runs. docs/once-sql.md explains isolation
levels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from holdfast.core.names import check_duration, check_name, shown
from holdfast.errors import ConfigurationError, UsageError
from holdfast.fencing.values import check_identifier
from holdfast.runtimes.threads import run_sync
from holdfast.sql.connections import Connection, Result, adapted, adapted_async, require_transaction, sql_states

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
    return run_sync(_insert(adapted(connection, "once_async"), key, table))


async def once_async(connection: Any, key: str, *, table: str = TABLE) -> bool:
    """The same as `once` for asyncio.

    `connection` is an AsyncConnection of psycopg, a connection of asyncpg, or an AsyncConnection or AsyncSession of
    SQLAlchemy.
    """
    if hasattr(connection, "run_sync"):  # of SQLAlchemy
        is_first: bool = await connection.run_sync(lambda sync: once(sync, key, table=table))
        return is_first
    return await _insert(adapted_async(connection), key, table)


def create_table(connection: Any, *, table: str = TABLE) -> None:
    """Create the table if it does not exist. MySQL commits the current transaction then: do it at deployment."""
    run_sync(_execute(adapted(connection, "once_async"), "ddl", (), table))


def ddl(dialect: str, *, table: str = TABLE) -> str:
    """The statement that creates the table, for a migration. `dialect` is "postgresql", "mysql" or "sqlite"."""
    if dialect not in _DIALECTS:
        raise ConfigurationError(f"dialect must be one of {', '.join(_DIALECTS)}, not {shown(dialect)}")
    return _filled(_DIALECTS[dialect].ddl, "", table)


def forget_older_than(connection: Any, age: object, *, table: str = TABLE) -> int:
    """Forget all keys that are older than this, such as "30d", by the clock of the database; how many there were.

    A forgotten key can be used again. `age` has to be longer than the time in which a duplicate may arrive.
    """
    interface, seconds = adapted(connection, "once_async"), check_duration("age", age)
    if seconds <= 0:
        raise ConfigurationError(f"age must be more than 0, not {shown(age)}")
    return run_sync(_execute(interface, "delete", (math.ceil(seconds),), table)).rows


def _filled(sql: str, mark: str, table: str) -> str:
    check_identifier("table", table)
    return sql.format(table=table, mark=mark)


async def _insert(connection: Connection, key: str, table: str) -> bool:
    """Insert the row of a key; whether this transaction is the one for the key."""
    name = check_name(key, "key").encode()
    require_transaction("once", "the key would be committed without your writes", connection)
    inserted = await _execute(connection, "insert", (name,), table)
    if inserted.rows not in (0, 1):
        raise UsageError("the driver does not report how many rows were inserted (psycopg: leave the pipeline mode)")
    return inserted.rows == 1


async def _execute(connection: Connection, statement: str, values: tuple[Any, ...], table: str) -> Result:
    sql = getattr(_DIALECTS[connection.dialect], statement)
    try:
        return await connection.execute(_filled(sql, connection.mark, table), values)
    except Exception as error:
        _explain(error, connection.dialect, table)
        raise


def _explain(error: BaseException, dialect: str, table: str) -> None:
    """Add the fix to the error of a missing table."""
    if sql_states(error) & {"42P01", _NO_SUCH_TABLE} or "no such table" in str(error):
        error.add_note(f"holdfast.sql.create_table creates it; for a migration: {ddl(dialect, table=table)}")


_NO_SUCH_TABLE = 1146  # MySQL's
