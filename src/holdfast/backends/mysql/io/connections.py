"""The connections of one client, and the tables that they use. Written once for threads and asyncio."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from holdfast.backends.mysql.io.connection import Connection, literal
from holdfast.backends.mysql.io.login import log_in
from holdfast.backends.mysql.io.waiter_sessions import WaiterSessions
from holdfast.backends.mysql.port import Answer, Statement, Value
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend
from holdfast.backends.mysql.sql import NOW, VERSION, statements
from holdfast.backends.sql_connections import (
    DatabaseConnections,
    TablesMissing,
    TransactionConflict,
    creation_error,
    unavailable,
)
from holdfast.errors import AccessDenied, BackendError, OutcomeUnknown

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from holdfast.backends.mysql.config import MysqlConfig
    from holdfast.backends.net.poller import Poller
    from holdfast.core.ports import Backend, Runtime

LOCK_WAIT_MAX = 4  # whole seconds: less than the client waits, so that the server gives up first
CREATE_MAX = 10.0  # seconds for creating our tables, which happens once

# The settings of our own sessions, which replace the server's defaults. READ COMMITTED, because it locks no gaps
# between rows, where different locks would conflict. It is not possible if the binary log has statements (binlog_format
# = STATEMENT); with REPEATABLE READ the steps are as correct, but conflict more often.
_SETTINGS = f"""SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    completion_type = 0, innodb_lock_wait_timeout = {LOCK_WAIT_MAX}, lock_wait_timeout = {LOCK_WAIT_MAX},
    sql_safe_updates = 0, character_set_client = utf8mb4, character_set_results = utf8mb4,
    character_set_connection = utf8mb4;
SET SESSION TRANSACTION READ WRITE;
SHOW VARIABLES WHERE Variable_name IN
    ('log_bin', 'binlog_format', 'innodb_flush_log_at_trx_commit')"""
# The status is for the guarantees. MySQL does not report its replicas to users without further rights.
_ISOLATION = """SET SESSION TRANSACTION ISOLATION LEVEL {level};
SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', 'Rpl_semi_sync_master_status')"""
_READ_COMMITTED = _ISOLATION.format(level="READ COMMITTED")
_REPEATABLE_READ = _ISOLATION.format(level="REPEATABLE READ")


def make_backend(config: MysqlConfig, connections: Connections, runtime: Runtime) -> Backend:
    if config.method == "version":
        return VersionBackend(config.url, connections, runtime)
    if config.method == "row":
        return RowBackend(config.url, connections, WaiterSessions(connections, runtime, config.url), runtime)
    return UniqueBackend(config.url, connections, runtime, local_handover=config.local_handover)


class Connections(DatabaseConnections[Connection]):
    """The implementation of MysqlPort."""

    version = VERSION
    container = "database"

    def __init__(self, config: MysqlConfig, poller: Poller, runtime: Runtime) -> None:
        super().__init__(config.url, config.max_connections, poller, runtime)
        self._config = config

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        sql = None if statement.is_prepared else statement.sql.format(*map(literal, values), now=NOW)
        missing: TablesMissing | None = None
        is_repaired = False

        async def attempt(connection: Connection) -> Answer:
            nonlocal deadline, missing
            try:
                if missing is not None or not self._has_tables:
                    began = self._now()
                    await self._ensure_tables(connection, deadline, missing, creates=not statement.reads)
                    missing = None
                    deadline += self._now() - began  # it happens once for a database, so it costs no caller its time
                if sql is None:
                    return await connection.execute(statement, values, deadline)
                return await connection.query(sql, deadline)
            except (TransactionConflict, TablesMissing):
                if statement.is_transaction:
                    connection.close()  # ends the transaction: a lock wait timeout rolls back only one statement
                raise

        while True:
            try:
                return await self._pool.run(attempt, deadline)
            except TransactionConflict as conflict:
                await self._pause_after(conflict, deadline)
            except TablesMissing as error:
                if statement.is_added:
                    return Answer()
                if is_repaired:
                    raise unavailable(self._url, str(error)) from error
                is_repaired, missing = True, error

    async def open(self, deadline: float) -> Connection:
        deadline = min(deadline, self._now() + self._config.connect_timeout)
        connection = Connection(self._url, await self._log_in(deadline), self._poller, self._runtime)
        self._opened.add(connection)
        try:
            if self._config.connect is not None:
                await connection.enable_multi_statements(deadline)
            answer = await connection.query(_SETTINGS, deadline)
            variables = {name: value for name, value in answer.rows}  # noqa: C416 (rows of two)
            logs_statements = variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT"
            answer = await connection.query(_REPEATABLE_READ if logs_statements else _READ_COMMITTED, deadline)
            status = {name: value for name, value in answer.rows}  # noqa: C416 (rows of two)
            # Commits do not wait for asynchronous replicas, so a replica that takes over may lack the last ones.
            has_all = status.get("Slaves_connected", "0") == "0" or status.get("Rpl_semi_sync_master_status") == "ON"
            self.is_durable = variables.get("innodb_flush_log_at_trx_commit") == "1" and has_all
        except BaseException as error:
            connection.close()
            if isinstance(error, OutcomeUnknown | TransactionConflict | TablesMissing):
                problem = error.problem if isinstance(error, BackendError) else str(error)
                raise unavailable(self._url, problem) from error
            raise
        return connection

    async def _log_in(self, deadline: float) -> socket.socket:
        return await log_in(self._config, self._poller, deadline)

    async def create_tables(self, deadline: float) -> None:
        connection = await self.open(deadline)
        try:
            await self._create_tables(connection, deadline, TablesMissing("some may be missing"), 0)
        finally:
            connection.close()

    async def _read_version(self, connection: Connection, deadline: float) -> int:
        try:
            answer = await connection.query("SELECT MAX(version) FROM holdfast_schema", deadline)
        except TablesMissing:
            return 0
        return int(answer.rows[0][0] or 0)

    async def _create_tables(
        self, connection: Connection, deadline: float, missing: TablesMissing | None, version: int
    ) -> None:
        # One client creates the tables; the others wait for the named lock and find them.
        deadline = max(deadline, self._now() + CREATE_MAX)
        name = "LEFT(CONCAT('holdfast:', DATABASE()), 64)"
        answer = await connection.query(f"SELECT GET_LOCK({name}, {CREATE_MAX - 1:g})", deadline)
        if answer.rows[0][0] != "1":
            raise unavailable(self._url, "another client was creating our tables all the time")
        try:
            version = await self._read_version(connection, deadline)
            self._check_version(version, is_complete=True, creates=True)
            is_outdated = version < VERSION or (missing is not None and missing.is_outdated)
            existing = set() if is_outdated else await self._objects(connection, deadline)
            for statement in _missing(existing, is_outdated=is_outdated):
                await connection.query(statement, deadline)
            await connection.query(f"DO RELEASE_LOCK({name})", deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, AccessDenied):
                raise creation_error(error, self._url) from error
            raise

    async def _objects(self, connection: Connection, deadline: float) -> set[str | None]:
        """The tables and procedures that exist. Other programs use them, so none of these is created again."""
        answer = await connection.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() UNION ALL "
            "SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE()",
            deadline,
        )
        return {name for (name,) in answer.rows}


def _missing(existing: Container[str | None], *, is_outdated: bool) -> list[str]:
    """The statements that create what does not exist; all of them if what exists is outdated.

    A function of its own, because of its condition: see `Engine.acquire_new`.
    """
    return [statement for created, statement in statements() if is_outdated or (created and created not in existing)]
