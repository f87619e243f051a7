"""The port: the connections of one client, and the tables that they use. Written once for threads and asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import Error
from psycopg.conninfo import make_conninfo

from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.passwords import ask_password
from holdfast.backends.postgresql.config import Endpoint, PostgresqlConfig, connection_parameters
from holdfast.backends.postgresql.io.connection import Connection
from holdfast.backends.postgresql.io.errors import pooler_error
from holdfast.backends.postgresql.io.subscriber import Subscriber
from holdfast.backends.postgresql.io.waiter_sessions import WaiterSessions
from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.polled import PolledBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend
from holdfast.backends.postgresql.sql import NEWEST_TABLE, VERSION, ownership_query, tables_ddl
from holdfast.backends.sql_connections import (
    DatabaseConnections,
    TablesMissing,
    TransactionConflict,
    creation_error,
    one_line,
    unavailable,
)
from holdfast.errors import AccessDenied, BackendError, ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.postgresql.port import PostgresqlPort, Row, Statement, Value, WaiterSession
    from holdfast.core.ports import Backend, Runtime

STATEMENT_MAX = 4.5  # seconds: a bit less than the client waits, so that the server cancels the statement first
# The settings of our own sessions, or of each of our transactions behind a pooler. Both also have READ COMMITTED,
# because the functions read a row again after they have locked it.
# - Plain index scans only, in the order of the index: they skip old versions of rows. The scans that the planner
#   prefers for tables as small as these read all old versions until the next vacuum.
# - No JIT: where such a scan is impossible, the estimated cost is so high that the plan would be compiled (1 s).
_SHARED_SETTINGS = {
    "statement_timeout": str(round(STATEMENT_MAX * 1000)),
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
# The other settings of a session:
# - synchronous_commit is not off: a granted lease must survive a crash of the server.
# - No transaction_timeout (PostgreSQL 17): it would end a session that waits for an advisory lock.
_SETTINGS = f"""{"".join(f"SET {name} = {value};" for name, value in _SHARED_SETTINGS.items())}
SET default_transaction_isolation = 'read committed';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL;
"""
# Whether committed data survives a crash of the machine and a failover. They survive a failover if commits wait for a
# standby, or if no standby exists. Every role can read these values. In the rows of the WAL senders most roles see only
# the pid. A WAL sender with a logical slot does not serve a standby.
_IS_DURABLE = """SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' AND (
current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('local', 'off')
OR NOT EXISTS (SELECT FROM pg_stat_get_wal_senders() AS sender WHERE NOT EXISTS (
SELECT FROM pg_replication_slots AS slot WHERE slot.active_pid = sender.pid AND slot.slot_type = 'logical')))"""

CHANNEL = "holdfast_session_"  # before the client's nonce
# The same for a client behind a pooler. Such a client shares no advisory lock, and holdfast_is_gone checks none for it.
POOLED_CHANNEL = "holdfast_pooled_"
_NONCE = 32  # characters of the nonce in the name of the channel
_POOLER_CHECKS = 3  # a busy one may by chance lend the same session twice
_CREATING = 7521962889421  # the advisory lock of a client that creates our tables


def make_backend(config: PostgresqlConfig, port: PostgresqlPort, runtime: Runtime) -> Backend:
    if config.method == "advisory":
        return AdvisoryBackend(config.url, port, runtime, schema=config.schema)
    if config.is_pooled and config.listen is None:
        return PolledBackend(config.url, port, runtime, local_handover=config.local_handover)
    return PostgresqlBackend(config.url, port, runtime, local_handover=config.local_handover)


def session_setup(channel: str) -> str:
    """The first statements of every session of a client.

    Only pg_catalog is searched, also if the role has other settings, so that no function or operator of another user is
    called. The shared advisory lock exists while a session of the client exists: holdfast_is_gone checks it.
    """
    key = int.from_bytes(bytes.fromhex(channel[-_NONCE:][:16]), "big", signed=True)
    return f"""SET search_path = pg_catalog, pg_temp;
SELECT set_config('holdfast.channel', '{channel}', false), pg_try_advisory_lock_shared({key}),
set_config('holdfast.opened', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, false)"""  # noqa: S608  (made of our own digits)


def pooled_preamble(channel: str) -> str:
    """The first statements of every transaction of a client behind a pooler.

    They and the request are one message, so they cost no round trip, and PostgreSQL executes all of it in one
    transaction. The settings end with that transaction. Other programs use the session before and after it: the
    transaction depends on no setting that they may have left there, and leaves none itself.

    NULL stands for the setting of the login. Newer servers reset the role together with the session authorization,
    older ones do not. An empty `holdfast.opened` says that the session shows nothing about other clients
    (holdfast_is_gone).
    """
    settings = {
        "search_path": "pg_catalog, pg_temp",
        "standard_conforming_strings": "on",
        "synchronous_commit": "on",
        "lock_timeout": "0",
        **_SHARED_SETTINGS,
        "holdfast.channel": channel,
        "holdfast.opened": "",
    }
    calls = [f"pg_catalog.set_config('{name}', NULL, true)" for name in ("session_authorization", "role")]
    calls += [f"pg_catalog.set_config('{name}', '{value}', true)" for name, value in settings.items()]
    return f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\nSELECT {', '.join(calls)};\n"


class Connections(DatabaseConnections[Connection]):
    """The connections of one client to one database."""

    version = VERSION
    container = "schema"

    def __init__(self, config: PostgresqlConfig, poller: Poller, runtime: Runtime, channel: str = "") -> None:
        super().__init__(config.url, config.max_connections, poller, runtime)
        # Where this client listens; it also identifies the client.
        self.channel = channel or (POOLED_CHANNEL if config.is_pooled else CHANNEL) + runtime.nonce()
        self._preamble = pooled_preamble(self.channel) if config.is_pooled else ""
        self.warnings: tuple[str, ...] = ()
        self._config = config

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self._pool.run(
            lambda connection: self.execute_on(connection, statement, values, deadline), deadline
        )

    async def execute_on(
        self, connection: Connection, statement: Statement, values: Sequence[Value], deadline: float
    ) -> list[Row]:
        """Execute it on this connection; create our tables first if they are missing; repeat it after a conflict."""
        missing: TablesMissing | None = None
        while True:
            try:
                if not self._has_tables:
                    await self._ensure_tables(connection, deadline, missing, creates=not statement.reads)
                return await connection.execute(statement, self._config.schema, values, deadline)
            except TransactionConflict as conflict:
                await self._pause_after(conflict, deadline)
            except TablesMissing as error:
                if statement.is_added:
                    return []
                if missing is not None:
                    raise unavailable(self._url, str(error)) from error
                self._has_tables, missing = False, error

    async def open(self, deadline: float) -> Connection:
        url, config = self._url, self._config
        deadline = min(deadline, self._now() + config.connect_timeout)
        addresses: dict[Endpoint, list[str]] = {}
        problem = "no address to connect to"
        for endpoint in config.endpoints:
            if endpoint.needs_lookup:
                try:
                    addresses[endpoint] = await addresses_of(endpoint.host, self._poller, deadline)
                except OSError as error:
                    problem = f"{endpoint.host}: {one_line(error)}"
        password = await ask_password(config.password, url, self._poller, deadline)
        candidates = connection_parameters(config, password, addresses)
        for number, parameters in enumerate(candidates):
            now = self._now()
            # An address that does not answer must leave time to try the others.
            until = now + (deadline - now) / (len(candidates) - number)
            connection = self._new_connection()
            try:
                await connection.connect(make_conninfo(**parameters), until)
                is_refused = not self._preamble and await self._is_pooled(connection, parameters, until)
                if not is_refused:
                    setup = "" if self._preamble else f"{session_setup(self.channel)};\n{_SETTINGS}"
                    ((is_durable,),) = await connection.query(setup + _IS_DURABLE, until)
                    self.is_durable = is_durable == "t"
            except (Error, OSError) as error:
                problem = one_line(error)
            except (HoldfastError, TransactionConflict, TablesMissing) as error:
                connection.close()
                problem = error.problem if isinstance(error, BackendError) else str(error)
            except BaseException:
                connection.close()
                raise
            else:
                if is_refused:
                    connection.close()
                    raise pooler_error(url)
                return connection
        raise unavailable(url, problem)

    def _new_connection(self) -> Connection:
        connection = Connection(self._url, self._poller, self._runtime, self._preamble)
        self._opened.add(connection)
        return connection

    async def _is_pooled(self, connection: Connection, parameters: Mapping[str, str], until: float) -> bool:
        """Whether a pooler between us and the server lends its sessions for one transaction at a time.

        A pooler accepts the login before it knows the server process, so it reports another process id for the
        connection. It is a transaction pooler if the server process changes, or also serves another connection. This is
        checked before the first setting is made, because the setting would stay in a session that other clients use.
        """
        first = await connection.backend_pid(until)
        if first == connection.pid:
            return False
        other = self._new_connection()
        try:
            await other.connect(make_conninfo(**parameters), until)
            is_pooled = await _is_shared(connection, other, first, until)
        finally:
            other.close()
        if not is_pooled:
            connection.pid = first
        return is_pooled

    async def create_tables(self, deadline: float) -> None:
        """Create or upgrade our tables and functions, also if only some are missing."""
        connection = await self.open(deadline)
        try:
            schema = self._config.schema
            ((newest,),) = await connection.query(f"SELECT to_regclass('{schema}.{NEWEST_TABLE}')", deadline)
            missing = TablesMissing(f"{NEWEST_TABLE} does not exist") if newest is None else None
            await self._ensure_tables(connection, deadline, missing, creates=True)
        finally:
            connection.close()

    async def _ensure_tables(
        self, connection: Connection, deadline: float, missing: TablesMissing | None, *, creates: bool
    ) -> None:
        try:
            await super()._ensure_tables(connection, deadline, missing, creates=creates)
        except TablesMissing as error:  # dropped by another client at this moment
            raise unavailable(self._url, str(error)) from error

    async def _read_version(self, connection: Connection, deadline: float) -> int:
        if not await self._check_owners(connection, deadline):
            return 0
        schema = self._config.schema
        ((version,),) = await connection.query(f"SELECT max(version) FROM {schema}.holdfast_schema", deadline)  # noqa: S608
        return int(version or 0)

    async def _check_owners(self, connection: Connection, deadline: float) -> bool:
        """Whether there is a table of ours, checked before any object of ours is used.

        Raises:
            ConfigurationError: an object of ours belongs to a role that is not trusted.
        """
        name = self._config.schema[1:-1]
        ((has_tables, is_open, object_name, owner),) = await connection.query(ownership_query(name), deadline)
        if object_name is not None:
            raise ConfigurationError(
                f"{self._url}: {object_name} in schema {name} belongs to the role {owner}, which could run anything "
                f"with the rights of this user: drop it and have the owner of the schema run `holdfast init`; or use a "
                f"schema in which no other role may create objects; or, if {owner} is to be trusted, GRANT CREATE ON "
                f"SCHEMA {name} TO {owner}"
            )
        if is_open == "t":
            fix = f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC, or use another schema"
            self.warnings = (f"every role of the database may create objects in schema {name}: {fix}",)
        return has_tables == "t"

    async def _create_tables(
        self, connection: Connection, deadline: float, missing: TablesMissing | None, version: int
    ) -> None:
        schema = self._config.schema
        try:
            exists = await connection.query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema[1:-1]}'", deadline)  # noqa: S608
            # Checked first, because IF NOT EXISTS needs the right to create a schema even if the schema exists.
            create = "" if exists else f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
            # One client creates the tables; the others wait for the lock and find them.
            await connection.query(
                f"""DO $holdfast$
                DECLARE
                    existing_version integer;
                BEGIN
                    PERFORM pg_advisory_xact_lock({_CREATING});
                    IF to_regclass('{schema}.holdfast_schema') IS NOT NULL AND {missing is None} THEN
                        EXECUTE 'SELECT max(version) FROM {schema}.holdfast_schema' INTO existing_version;
                    END IF;
                    IF coalesce(existing_version, 0) < {VERSION} THEN
                        EXECUTE $ddl${create}{tables_ddl(schema[1:-1])}$ddl$;
                    END IF;
                END
                $holdfast$""",  # noqa: S608  (the name of the schema was checked)
                deadline,
            )
        except AccessDenied as error:
            older = ""
            if version:
                reason = missing or f"version {version} does not do what version {VERSION} does"
                older = f"; the tables are of an older holdfast: {reason}"
            raise creation_error(error, self._url, older) from error
        await self._check_owners(connection, deadline)


class Database(Connections):
    """The implementation of PostgresqlPort."""

    def __init__(self, config: PostgresqlConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        super().__init__(config, poller, runtime)
        self._listening = None if config.listen is None else Connections(config.listen, poller, runtime, self.channel)
        self.subscriber = Subscriber(config.url, self, poller, background, runtime, listening=self._listening)
        self._sessions = WaiterSessions(self)

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        return await self._sessions.open(deadline)

    def return_waiter_session(self, session: WaiterSession) -> None:
        self._sessions.put(session)

    async def close(self) -> None:
        await self.subscriber.close()
        self._sessions.close()
        if self._listening is not None:
            await self._listening.close()
        await super().close()

    def abandon(self) -> None:
        self.subscriber.abandon()
        if self._listening is not None:
            self._listening.abandon()
        super().abandon()


async def _is_shared(connection: Connection, other: Connection, first: int, until: float) -> bool:
    """Whether the two connections share the server process `first`, or the first connection has left it."""
    for _ in range(_POOLER_CHECKS):
        if await other.backend_pid(until) == first or await connection.backend_pid(until) != first:
            return True
    return False
