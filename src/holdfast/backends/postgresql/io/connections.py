"""The connections of one client, and the tables they lead to. Written once for threads and asyncio."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import Error
from psycopg.conninfo import make_conninfo

from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.pool import ConnectionPool
from holdfast.backends.postgresql.config import Place, Server, attempts
from holdfast.backends.postgresql.io import errors
from holdfast.backends.postgresql.io.connection import Wire, words
from holdfast.backends.postgresql.io.errors import NoTables, OnceMore
from holdfast.backends.postgresql.sql import NEWEST, VERSION, tables, trust
from holdfast.backends.schema_version import check_version
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Runtime

STATEMENT_MAX = 4.5  # seconds: a bit less than we wait, so that the server says itself that it has given up
ONCE_MORE_PAUSE = 0.02  # seconds, at most, before a statement that met another one is given again
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
_POOLER_LOOKS = 3  # a busy one may by chance lend the same session twice
_CREATING = 7521962889421  # the advisory lock of those who create our tables


def presence(channel: str) -> str:
    """What every session of a client says first.

    Only pg_catalog is searched, so that no function or operator of another user is called, whatever the role's settings
    are. And holdfast_is_gone finds the client alive while one of its sessions lasts.
    """
    key = int.from_bytes(bytes.fromhex(channel.removeprefix(CHANNEL)[:16]), "big", signed=True)
    return f"""SET search_path = pg_catalog, pg_temp;
SELECT set_config('holdfast.channel', '{channel}', false), pg_try_advisory_lock_shared({key}),
set_config('holdfast.opened', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text, false)"""  # noqa: S608  (made of our own digits)


class Lines:
    """One database."""

    def __init__(self, place: Place, poller: Poller, runtime: Runtime) -> None:
        self.channel = CHANNEL + runtime.nonce()  # where this client listens; it also stands for the client itself
        self.is_durable = True  # as far as the server has said
        self.warnings: tuple[str, ...] = ()
        self._place, self._poller, self._runtime, self._now = place, poller, runtime, runtime.now
        self._pool = ConnectionPool(place.url, self.open, runtime, place.max_connections)
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()  # all of them, also those that belong to somebody
        self._has_tables = False

    async def ask(self, statement: Statement, values: Sequence[Value], deadline: float) -> list[Row]:
        async def ask(wire: Wire) -> list[Row]:
            return await self.ask_on(wire, statement, values, deadline)

        return await self._pool.run(ask, deadline)

    async def ask_on(self, wire: Wire, statement: Statement, values: Sequence[Value], deadline: float) -> list[Row]:
        """On this connection, once more if it was in somebody's way, and after our tables were made if need be."""
        some: NoTables | None = None
        while True:
            try:
                if not self._has_tables:
                    await self._meet_tables(wire, deadline, some, creates=not statement.reads)
                return await wire.ask(statement, self._place.schema, values, deadline)
            except OnceMore as met:
                pause = ONCE_MORE_PAUSE * self._runtime.jitter()
                if self._now() + pause >= deadline:
                    raise errors.not_connected(self._place.url, f"others were in the way all the time: {met}") from met
                await self._runtime.sleep(pause)
            except NoTables as missing:
                if some is not None:
                    raise errors.not_connected(self._place.url, str(missing)) from missing
                self._has_tables, some = False, missing

    async def open(self, deadline: float) -> Wire:
        """A connection, for the caller alone.

        Raises:
            BackendUnavailable: no server could be reached, or none let us in.
        """
        url, place = self._place.url, self._place
        deadline = min(deadline, self._now() + place.connect_timeout)
        found: dict[Server, list[str]] = {}
        problem = "no address to connect to"
        for server in place.servers:
            if server.needs_lookup:
                try:
                    found[server] = await addresses_of(server.host, self._poller, deadline)
                except OSError as error:
                    problem = f"{server.host}: {words(error)}"
        tries = attempts(place, found)
        for number, told in enumerate(tries):
            now = self._now()
            # Who does not answer must leave time to try the others.
            until = now + (deadline - now) / (len(tries) - number)
            wire = Wire(url, self._poller, self._runtime)
            self._wires.add(wire)
            try:
                await wire.connect(make_conninfo(**told), until)
                is_pooled = await self._is_pooled(wire, told, until)
                if not is_pooled:
                    ((is_durable,),) = await wire.say(f"{presence(self.channel)};\n{_SETTINGS}", until)
                    self.is_durable = is_durable == "t"
            except (Error, OSError) as error:
                problem = words(error)
            except (HoldfastError, OnceMore, NoTables) as error:
                wire.close()
                problem = error.problem if isinstance(error, BackendError) else str(error)
            except BaseException:
                wire.close()
                raise
            else:
                if is_pooled:
                    wire.close()
                    raise errors.pooled(url)
                return wire
        raise errors.not_connected(url, problem)

    async def _is_pooled(self, wire: Wire, told: Mapping[str, str], until: float) -> bool:
        """What lends its sessions for one transaction at a time is between us and the server.

        A pooler of any kind shows in the number of the process that we talk to, which it cannot know when it lets us
        in. If that number changes, or is another client's too, it is one of that kind. Found out before the first
        setting is made: it would be made in somebody else's session.
        """
        first = await wire.process(until)
        if first == wire.pid:
            return False
        other = Wire(self._place.url, self._poller, self._runtime)
        self._wires.add(other)
        try:
            await other.connect(make_conninfo(**told), until)
            is_pooled = await _changes_process(wire, other, first, until)
        finally:
            other.close()
        if not is_pooled:
            wire.pid = first
        return is_pooled

    async def create_tables(self, deadline: float) -> None:
        """Our tables and functions, as this version has them: what is missing or of an older one."""
        wire = await self.open(deadline)
        try:
            ((newest,),) = await wire.say(f"SELECT to_regclass('{self._place.schema}.{NEWEST}')", deadline)
            missing = NoTables(f"{NEWEST} does not exist") if newest is None else None
            await self._meet_tables(wire, deadline, missing)
        finally:
            wire.close()

    def close(self) -> None:
        self._pool.close()

    def abandon(self) -> None:
        self._pool.abandon()
        for wire in list(self._wires):
            wire.abandon()

    async def _meet_tables(
        self, wire: Wire, deadline: float, missing: NoTables | None = None, *, creates: bool = True
    ) -> None:
        """Find our tables, or create them. Whatever happens here, nothing of what the caller wants was sent yet.

        `missing`: something is, even if the version says that they are there.
        """
        schema = self._place.schema
        try:
            found = 0
            if await self._check_owners(wire, deadline):
                ((version,),) = await wire.say(f"SELECT max(version) FROM {schema}.holdfast_schema", deadline)  # noqa: S608
                found = int(version or 0)
            if found > VERSION:
                raise ConfigurationError(
                    f"{self._place.url}: the tables in schema {schema} are of a newer holdfast (version {found}, "
                    f"this one knows {VERSION}): use that one, or another schema"
                )
            if not creates:
                check_version(self._place.url, found, VERSION, is_incomplete=missing is not None)
            elif found < VERSION or missing is not None:
                older = NoTables(f"version {found} does not do what version {VERSION} does") if found else None
                await self._create_tables(wire, deadline, missing, older)
                await self._check_owners(wire, deadline)
        except NoTables as error:  # dropped this very moment
            raise errors.not_connected(self._place.url, str(error)) from error
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._has_tables = True

    async def _check_owners(self, wire: Wire, deadline: float) -> bool:
        """Whether there is anything of ours, found out before the first of it is used.

        Raises:
            ConfigurationError: some of it belongs to a role that we have no reason to trust.
        """
        name = self._place.schema[1:-1]
        ((has_tables, is_open, what, owner),) = await wire.say(trust(name), deadline)
        if what is not None:
            raise ConfigurationError(
                f"{self._place.url}: {what} in schema {name} belongs to the role {owner}, which could run anything "
                f"with the rights of this user: drop it and have the owner of the schema run `holdfast init`; or use a "
                f"schema in which no other role may create objects; or, if {owner} is to be trusted, GRANT CREATE ON "
                f"SCHEMA {name} TO {owner}"
            )
        if is_open == "t":
            fix = f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC, or use another schema"
            self.warnings = (f"every role of the database may create objects in schema {name}: {fix}",)
        return has_tables == "t"

    async def _create_tables(
        self, wire: Wire, deadline: float, missing: NoTables | None, older: NoTables | None
    ) -> None:
        schema = self._place.schema
        try:
            exists = await wire.say(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema[1:-1]}'", deadline)  # noqa: S608
            # Asked first: IF NOT EXISTS needs the right to create a schema even where it exists.
            create = "" if exists else f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
            # One creates, the others wait for it and find it done.
            await wire.say(
                f"""DO $holdfast$
                DECLARE
                    found integer;
                BEGIN
                    PERFORM pg_advisory_xact_lock({_CREATING});
                    IF to_regclass('{schema}.holdfast_schema') IS NOT NULL AND {missing is None} THEN
                        EXECUTE 'SELECT max(version) FROM {schema}.holdfast_schema' INTO found;
                    END IF;
                    IF coalesce(found, 0) < {VERSION} THEN
                        EXECUTE $ddl${create}{tables(schema[1:-1])}$ddl$;
                    END IF;
                END
                $holdfast$""",  # noqa: S608  (the schema's name was checked)
                deadline,
            )
        except HoldfastError as error:
            refused = errors.not_created(error, self._place.url, (missing or older) if older else None)
            if refused is error:
                raise
            raise refused from error


async def _changes_process(wire: Wire, other: Wire, first: int, until: float) -> bool:
    for _ in range(_POOLER_LOOKS):
        if await other.process(until) == first or await wire.process(until) != first:
            return True
    return False
