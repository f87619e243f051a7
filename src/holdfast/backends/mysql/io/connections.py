"""The connections of one client, and the tables they lead to. Written once for threads and asyncio."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from holdfast.backends.mysql.io import errors
from holdfast.backends.mysql.io.connection import Connection, literal
from holdfast.backends.mysql.io.errors import TablesMissing, TransactionConflict
from holdfast.backends.mysql.io.login import log_in
from holdfast.backends.mysql.sql import NOW, VERSION, statements
from holdfast.backends.net.pool import ConnectionPool
from holdfast.backends.schema_version import check_version
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from holdfast.backends.mysql.config import MysqlConfig
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.backends.net.poller import Poller
    from holdfast.core.ports import Runtime

LOCK_WAIT_MAX = 4  # seconds, whole ones: less than we wait, so that the server says itself that it has given up
CREATE_MAX = 10.0  # seconds for creating our tables, which happens once
RETRY_PAUSE = 0.02  # seconds, at most, before a request that met another one is given again

# Our own session, so nobody minds: whatever the server's defaults are, ours are these. READ COMMITTED, since it locks
# no gaps between rows, where different locks would meet; but not where the binary log is kept as statements, which does
# not go with it: there the steps are as correct, only more of them meet.
_SETTINGS = f"""SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    completion_type = 0, innodb_lock_wait_timeout = {LOCK_WAIT_MAX}, lock_wait_timeout = {LOCK_WAIT_MAX},
    sql_safe_updates = 0, character_set_client = utf8mb4, character_set_results = utf8mb4,
    character_set_connection = utf8mb4;
SET SESSION TRANSACTION READ WRITE;
SHOW VARIABLES WHERE Variable_name IN
    ('log_bin', 'binlog_format', 'innodb_flush_log_at_trx_commit')"""
_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_REPEATABLE_READ = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"


class Connections:
    """As port.py has it."""

    def __init__(self, config: MysqlConfig, poller: Poller, runtime: Runtime) -> None:
        self._config, self._poller, self._runtime, self._now = config, poller, runtime, runtime.now
        self._pool = ConnectionPool(config.url, self.open, runtime, config.max_connections)
        self._opened: weakref.WeakSet[Connection] = weakref.WeakSet()  # all of them, also those that belong to somebody
        self._has_tables = False
        self.is_forgetful = False  # as far as is known

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        sql = None if statement.is_prepared else statement.sql.format(*map(literal, values), now=NOW)
        is_repaired = repairs = False

        async def attempt(connection: Connection) -> Answer:
            nonlocal deadline, repairs
            try:
                if repairs or not self._has_tables:
                    began = self._now()
                    await self._ensure_tables(connection, deadline, repairs=repairs, creates=not statement.reads)
                    repairs = False
                    deadline += self._now() - began  # once in the life of a database: nobody's time is up for that
                if sql is None:
                    return await connection.execute(statement, values, deadline)
                return await connection.query(sql, deadline)
            except (TransactionConflict, TablesMissing):
                if statement.is_transaction:
                    connection.close()  # which ends it: a lock wait that is given up rolls back one statement only
                raise

        while True:
            try:
                return await self._pool.run(attempt, deadline)
            except TransactionConflict as met:
                pause = RETRY_PAUSE * self._runtime.jitter()
                if self._now() + pause >= deadline:
                    raise errors.unavailable(self._config.url, f"others were in the way all the time: {met}") from met
                await self._runtime.sleep(pause)
            except TablesMissing as missing:
                if is_repaired:
                    raise errors.unavailable(self._config.url, str(missing)) from missing
                is_repaired = repairs = True

    async def open(self, deadline: float) -> Connection:
        """A connection of its own, for the caller alone.

        Raises:
            BackendUnavailable: the server could not be reached, or did not let us in.
        """
        config = self._config
        deadline = min(deadline, self._now() + config.connect_timeout)
        connection = Connection(config.url, await self._log_in(deadline), self._poller, self._runtime)
        self._opened.add(connection)
        try:
            if config.connect is not None:
                await connection.enable_multi_statements(deadline)
            answer = await connection.query(_SETTINGS, deadline)
            said = {name: value for name, value in answer.rows}  # noqa: C416 (rows of two)
            self.is_forgetful = said.get("innodb_flush_log_at_trx_commit") != "1"
            is_log_of_statements = said.get("log_bin") == "ON" and said.get("binlog_format") == "STATEMENT"
            await connection.query(_REPEATABLE_READ if is_log_of_statements else _READ_COMMITTED, deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, OutcomeUnknown | TransactionConflict | TablesMissing):
                raise errors.unavailable(config.url, _problem(error)) from error
            raise
        return connection

    async def _log_in(self, deadline: float) -> socket.socket:
        return await log_in(self._config, self._poller, deadline)

    async def create_tables(self, deadline: float) -> None:
        connection = await self.open(deadline)
        try:
            await self._create_tables(connection, deadline, repairs=False)
        finally:
            connection.close()

    async def close(self) -> None:
        self._pool.close()

    def abandon(self) -> None:
        self._pool.abandon()
        for connection in list(self._opened):
            connection.abandon()

    async def _ensure_tables(self, connection: Connection, deadline: float, *, repairs: bool, creates: bool) -> None:
        """Find our tables, or create them. Whatever happens here, nothing of what the caller wants was sent yet."""
        try:
            found = await self._version(connection, deadline)
            if not creates:
                check_version(self._config.url, found, VERSION, is_incomplete=repairs)
            elif repairs or found < VERSION:
                await self._create_tables(connection, deadline, repairs=repairs)
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._has_tables = True

    async def _version(self, connection: Connection, deadline: float) -> int:
        try:
            answer = await connection.query("SELECT MAX(version) FROM holdfast_schema", deadline)
        except TablesMissing:
            return 0
        found = int(answer.rows[0][0] or 0)
        if found > VERSION:
            raise ConfigurationError(
                f"{self._config.url}: the tables there are of a newer holdfast (version {found}, this one knows "
                f"{VERSION}): use that one, or another database"
            )
        return found

    async def _create_tables(self, connection: Connection, deadline: float, *, repairs: bool) -> None:
        # One creates, the others wait for it and find it done.
        deadline = max(deadline, self._now() + CREATE_MAX)
        name = "LEFT(CONCAT('holdfast:', DATABASE()), 64)"
        answer = await connection.query(f"SELECT GET_LOCK({name}, {CREATE_MAX - 1:g})", deadline)
        if answer.rows[0][0] != "1":
            raise errors.unavailable(self._config.url, "somebody else was creating our tables all the time")
        try:
            if await self._version(connection, deadline) < VERSION or repairs:
                for statement in statements():
                    await connection.query(statement, deadline)
            await connection.query(f"DO RELEASE_LOCK({name})", deadline)
        except BaseException as error:
            connection.close()
            if (
                not isinstance(error, HoldfastError)
                or (refused := errors.creation_error(error, self._config.url)) is error
            ):
                raise
            raise refused from error


def _problem(error: BaseException) -> str:
    return error.problem if isinstance(error, BackendError) else str(error)
