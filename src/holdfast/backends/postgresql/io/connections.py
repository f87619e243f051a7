"""The connections of one client, and the tables they lead to. Written once for threads and asyncio."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import Error
from psycopg.conninfo import make_conninfo

from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.pool import ConnectionPool
from holdfast.backends.postgresql.config import Endpoint, PostgresqlConfig, connection_parameters
from holdfast.backends.postgresql.io import errors
from holdfast.backends.postgresql.io.connection import Connection, one_line
from holdfast.backends.postgresql.io.errors import TablesMissing, TransactionConflict
from holdfast.backends.postgresql.sql import NEWEST_TABLE, VERSION, ownership_query, tables_ddl
from holdfast.backends.schema_version import check_version
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Runtime

STATEMENT_MAX = 4.5  # seconds: a bit less than we wait, so that the server says itself that it has given up
RETRY_PAUSE = 0.02  # seconds, at most, before a statement that met another one is given again
# Our own session, so nobody minds. READ COMMITTED, since the functions look again after they have locked a row. Plain
# index scans only, in the order of the index: they step over old versions of rows, whereas what the planner prefers for
# tables as small as these reads every one of them until the next vacuum. No JIT: where such a scan cannot be had, the
# plan looks so expensive that it would be compiled, for a second. A granted lease must survive a crash of the server,
# so synchronous_commit is not off. transaction_timeout (PostgreSQL 17) would end a session that waits at a gate.
#
# The answer says whether what was committed survives a crash of the machine too.
_SETTINGS = f"""SET statement_timeout = {round(STATEMENT_MAX * 1000)};
SET default_transaction_isolation = 'read committed';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET jit = off;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL;
SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'"""

CHANNEL = "holdfast_session_"  # before the client's nonce
_POOLER_CHECKS = 3  # a busy one may by chance lend the same session twice
_CREATING = 7521962889421  # the advisory lock of those who create our tables


def session_setup(channel: str) -> str:
    """What every session of a client says first.

    Only pg_catalog is searched, so that no function or operator of another user is called, whatever the role's settings
    are. And holdfast_is_gone finds the client alive while one of its sessions lasts.
    """
    key = int.from_bytes(bytes.fromhex(channel.removeprefix(CHANNEL)[:16]), "big", signed=True)
    return f"""SET search_path = pg_catalog, pg_temp;
SELECT set_config('holdfast.channel', '{channel}', false), pg_try_advisory_lock_shared({key}),
set_config('holdfast.opened', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, false)"""  # noqa: S608  (made of our own digits)


class Connections:
    """One database."""

    def __init__(self, config: PostgresqlConfig, poller: Poller, runtime: Runtime) -> None:
        self.channel = CHANNEL + runtime.nonce()  # where this client listens; it also stands for the client itself
        self.is_durable = True  # as far as the server has said
        self.warnings: tuple[str, ...] = ()
        self._config, self._poller, self._runtime, self._now = config, poller, runtime, runtime.now
        self._pool = ConnectionPool(config.url, self.open, runtime, config.max_connections)
        self._opened: weakref.WeakSet[Connection] = weakref.WeakSet()  # all of them, also those that belong to somebody
        self._has_tables = False

    async def execute(self, statement: Statement, values: Sequence[Value], deadline: float) -> list[Row]:
        async def execute(connection: Connection) -> list[Row]:
            return await self.execute_on(connection, statement, values, deadline)

        return await self._pool.run(execute, deadline)

    async def execute_on(
        self, connection: Connection, statement: Statement, values: Sequence[Value], deadline: float
    ) -> list[Row]:
        """On this connection, once more if it was in somebody's way, and after our tables were made if need be."""
        some: TablesMissing | None = None
        while True:
            try:
                if not self._has_tables:
                    await self._ensure_tables(connection, deadline, some, creates=not statement.reads)
                return await connection.execute(statement, self._config.schema, values, deadline)
            except TransactionConflict as met:
                pause = RETRY_PAUSE * self._runtime.jitter()
                if self._now() + pause >= deadline:
                    raise errors.unavailable(self._config.url, f"others were in the way all the time: {met}") from met
                await self._runtime.sleep(pause)
            except TablesMissing as missing:
                if some is not None:
                    raise errors.unavailable(self._config.url, str(missing)) from missing
                self._has_tables, some = False, missing

    async def open(self, deadline: float) -> Connection:
        """A connection, for the caller alone.

        Raises:
            BackendUnavailable: no server could be reached, or none let us in.
        """
        url, config = self._config.url, self._config
        deadline = min(deadline, self._now() + config.connect_timeout)
        found: dict[Endpoint, list[str]] = {}
        problem = "no address to connect to"
        for endpoint in config.endpoints:
            if endpoint.needs_lookup:
                try:
                    found[endpoint] = await addresses_of(endpoint.host, self._poller, deadline)
                except OSError as error:
                    problem = f"{endpoint.host}: {one_line(error)}"
        candidates = connection_parameters(config, found)
        for number, parameters in enumerate(candidates):
            now = self._now()
            # Who does not answer must leave time to try the others.
            until = now + (deadline - now) / (len(candidates) - number)
            connection = Connection(url, self._poller, self._runtime)
            self._opened.add(connection)
            try:
                await connection.connect(make_conninfo(**parameters), until)
                is_pooled = await self._is_pooled(connection, parameters, until)
                if not is_pooled:
                    ((is_durable,),) = await connection.query(f"{session_setup(self.channel)};\n{_SETTINGS}", until)
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
                if is_pooled:
                    connection.close()
                    raise errors.pooler_error(url)
                return connection
        raise errors.unavailable(url, problem)

    async def _is_pooled(self, connection: Connection, parameters: Mapping[str, str], until: float) -> bool:
        """What lends its sessions for one transaction at a time is between us and the server.

        A pooler of any kind shows in the number of the process that we talk to, which it cannot know when it lets us
        in. If that number changes, or is another client's too, it is one of that kind. Found out before the first
        setting is made: it would be made in somebody else's session.
        """
        first = await connection.backend_pid(until)
        if first == connection.pid:
            return False
        other = Connection(self._config.url, self._poller, self._runtime)
        self._opened.add(other)
        try:
            await other.connect(make_conninfo(**parameters), until)
            is_pooled = await _is_other_process(connection, other, first, until)
        finally:
            other.close()
        if not is_pooled:
            connection.pid = first
        return is_pooled

    async def create_tables(self, deadline: float) -> None:
        """Our tables and functions, as this version has them: what is missing or of an older one."""
        connection = await self.open(deadline)
        try:
            ((newest,),) = await connection.query(
                f"SELECT to_regclass('{self._config.schema}.{NEWEST_TABLE}')", deadline
            )
            missing = TablesMissing(f"{NEWEST_TABLE} does not exist") if newest is None else None
            await self._ensure_tables(connection, deadline, missing)
        finally:
            connection.close()

    def close(self) -> None:
        self._pool.close()

    def abandon(self) -> None:
        self._pool.abandon()
        for connection in list(self._opened):
            connection.abandon()

    async def _ensure_tables(
        self, connection: Connection, deadline: float, missing: TablesMissing | None = None, *, creates: bool = True
    ) -> None:
        """Find our tables, or create them. Whatever happens here, nothing of what the caller wants was sent yet.

        `missing`: something is, even if the version says that they are there.
        """
        schema = self._config.schema
        try:
            found = 0
            if await self._check_owners(connection, deadline):
                ((version,),) = await connection.query(f"SELECT max(version) FROM {schema}.holdfast_schema", deadline)  # noqa: S608
                found = int(version or 0)
            if found > VERSION:
                raise ConfigurationError(
                    f"{self._config.url}: the tables in schema {schema} are of a newer holdfast (version {found}, "
                    f"this one knows {VERSION}): use that one, or another schema"
                )
            if not creates:
                check_version(self._config.url, found, VERSION, is_incomplete=missing is not None)
            elif found < VERSION or missing is not None:
                older = TablesMissing(f"version {found} does not do what version {VERSION} does") if found else None
                await self._create_tables(connection, deadline, missing, older)
                await self._check_owners(connection, deadline)
        except TablesMissing as error:  # dropped this very moment
            raise errors.unavailable(self._config.url, str(error)) from error
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._has_tables = True

    async def _check_owners(self, connection: Connection, deadline: float) -> bool:
        """Whether there is anything of ours, found out before the first of it is used.

        Raises:
            ConfigurationError: some of it belongs to a role that we have no reason to trust.
        """
        name = self._config.schema[1:-1]
        ((has_tables, is_open, what, owner),) = await connection.query(ownership_query(name), deadline)
        if what is not None:
            raise ConfigurationError(
                f"{self._config.url}: {what} in schema {name} belongs to the role {owner}, which could run anything "
                f"with the rights of this user: drop it and have the owner of the schema run `holdfast init`; or use a "
                f"schema in which no other role may create objects; or, if {owner} is to be trusted, GRANT CREATE ON "
                f"SCHEMA {name} TO {owner}"
            )
        if is_open == "t":
            fix = f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC, or use another schema"
            self.warnings = (f"every role of the database may create objects in schema {name}: {fix}",)
        return has_tables == "t"

    async def _create_tables(
        self, connection: Connection, deadline: float, missing: TablesMissing | None, older: TablesMissing | None
    ) -> None:
        schema = self._config.schema
        try:
            exists = await connection.query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema[1:-1]}'", deadline)  # noqa: S608
            # Asked first: IF NOT EXISTS needs the right to create a schema even where it exists.
            create = "" if exists else f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
            # One creates, the others wait for it and find it done.
            await connection.query(
                f"""DO $holdfast$
                DECLARE
                    found integer;
                BEGIN
                    PERFORM pg_advisory_xact_lock({_CREATING});
                    IF to_regclass('{schema}.holdfast_schema') IS NOT NULL AND {missing is None} THEN
                        EXECUTE 'SELECT max(version) FROM {schema}.holdfast_schema' INTO found;
                    END IF;
                    IF coalesce(found, 0) < {VERSION} THEN
                        EXECUTE $ddl${create}{tables_ddl(schema[1:-1])}$ddl$;
                    END IF;
                END
                $holdfast$""",  # noqa: S608  (the schema's name was checked)
                deadline,
            )
        except HoldfastError as error:
            refused = errors.creation_error(error, self._config.url, (missing or older) if older else None)
            if refused is error:
                raise
            raise refused from error


async def _is_other_process(connection: Connection, other: Connection, first: int, until: float) -> bool:
    for _ in range(_POOLER_CHECKS):
        if await other.backend_pid(until) == first or await connection.backend_pid(until) != first:
            return True
    return False
