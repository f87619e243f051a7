"""Locks that end with the caller's transaction, on PostgreSQL: advisory locks on keys of their own.

The steps are written once, as coroutines over `Connection.execute`, for blocking connections and for asyncio.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from holdfast.core.names import Duration, check_flag, check_lock_name, check_timeout
from holdfast.errors import ConfigurationError, UsageError
from holdfast.runtimes.threads import run_sync
from holdfast.sql.connections import Connection, adapted, adapted_async, require_transaction, sql_states

_LOCK_NOT_AVAILABLE = "55P03"  # lock_timeout was reached
_LEVELS = "'read committed', 'read uncommitted'"


def xact_lock(connection: Any, name: str, *, timeout: Duration | None = None, shared: bool = False) -> bool:
    """Lock this name until the end of the caller's transaction on PostgreSQL. Returns False if the timeout is over.

    It excludes other callers of `xact_lock` in the same database, and not the holders of leases. With `shared`, several
    transactions hold it together, and exclude those without. A transaction that has the lock may call this again. The
    lock cannot be released earlier; a rollback to a savepoint before the call releases it.

    `connection` is a connection of psycopg or psycopg2, a connection or session of SQLAlchemy 2, or a connection of
    Django. Errors of the database (a deadlock, for example) are raised as the driver's own: roll back, and retry.

    Args:
        connection: Of the caller, in a transaction with the isolation level READ COMMITTED.
        name: Text that all callers agree on.
        timeout: None: wait without a limit of our own, 0: do not wait.
        shared: Hold the lock together with others that are shared.

    Raises:
        UsageError: there is no transaction; or its isolation level is higher: then it would not see what the previous
            holder of the lock has committed.
        ConfigurationError: an argument is refused.
    """
    call, seconds = _checked(name, timeout, shared)
    interface = adapted(connection, "xact_lock_async")
    if interface.dialect != "postgresql":
        raise ConfigurationError(f"xact_lock needs PostgreSQL, not {interface.dialect}")
    return run_sync(_lock(interface, call, seconds))


async def xact_lock_async(connection: Any, name: str, *, timeout: Duration | None = None, shared: bool = False) -> bool:
    """The same as `xact_lock` for asyncio.

    `connection` is an AsyncConnection of psycopg, a connection of asyncpg, or an AsyncConnection or AsyncSession of
    SQLAlchemy.
    """
    call, seconds = _checked(name, timeout, shared)
    if hasattr(connection, "run_sync"):  # of SQLAlchemy
        is_locked: bool = await connection.run_sync(lambda sync: xact_lock(sync, name, timeout=timeout, shared=shared))
        return is_locked
    return await _lock(adapted_async(connection), call, seconds)


def _checked(name: object, timeout: object, shared: object) -> tuple[str, float | None]:
    """The call of the function that locks this name, and the timeout in seconds."""
    key, seconds = _key(check_lock_name(name)), check_timeout(timeout)
    function = "pg_try_advisory_xact_lock" if seconds == 0 else "pg_advisory_xact_lock"
    suffix = "_shared" if check_flag("shared", shared) else ""
    return f"{function}{suffix}({key})", seconds


async def _lock(connection: Connection, call: str, seconds: float | None) -> bool:
    require_transaction("xact_lock", "the lock would be released at once", connection)
    if not seconds:  # 0: no wait; None: no limit of our own
        return await _take(connection, call)
    return await _take_within(connection, call, math.ceil(seconds * 1000))


async def _take(connection: Connection, call: str) -> bool:
    # The CASE calls the function only at a level at which the transaction sees what the previous holder has committed.
    # At a higher one, this very statement would fix its snapshot, before it waits for the lock.
    level = "current_setting('transaction_isolation')"
    statement = f"SELECT CASE WHEN {level} IN ({_LEVELS}) THEN CAST({call} AS text) ELSE {level} END"
    answer = (await connection.execute(statement, ())).value
    if answer in ("repeatable read", "serializable"):
        raise UsageError(
            f"xact_lock needs a transaction with READ COMMITTED: one with {answer.upper()} reads the state from before "
            "the lock, so it would not see what the previous holder has committed"
        )
    return bool(answer != "false")


async def _take_within(connection: Connection, call: str, milliseconds: int) -> bool:
    # An error of a statement ends the transaction, unless there is a savepoint to go back to.
    before = (await connection.execute("SELECT current_setting('lock_timeout')", ())).value
    await connection.execute("SAVEPOINT holdfast_xact_lock", ())
    await connection.execute(f"SELECT set_config('lock_timeout', '{milliseconds}', true)", ())
    try:
        is_locked = await _take(connection, call)
    except Exception as error:
        if not isinstance(error, UsageError) and _LOCK_NOT_AVAILABLE not in sql_states(error):
            raise
        await connection.execute("ROLLBACK TO SAVEPOINT holdfast_xact_lock", ())  # also of the setting
        await connection.execute("RELEASE SAVEPOINT holdfast_xact_lock", ())
        if isinstance(error, UsageError):
            raise
        return False
    await connection.execute(f"SELECT set_config('lock_timeout', '{before}', true)", ())
    await connection.execute("RELEASE SAVEPOINT holdfast_xact_lock", ())
    return is_locked


def _key(name: str) -> int:
    """64 bits. Two names with the same key by chance would exclude each other."""
    digest = hashlib.sha256(f"holdfast.sql.xact_lock\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
