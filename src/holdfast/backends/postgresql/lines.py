"""Connections, written once for threads and asyncio: libpq does the talking, `Eyes` the waiting.

psycopg's own `Connection` is not used: its waits cannot be given a deadline, and on an interrupt it would talk to the
server for up to five more seconds. Its `pq` layer is libpq without any waiting.

A connection is used again only after a complete exchange, which ends with ReadyForQuery: only then is the transaction
committed, even though its rows come earlier. Whatever happens in between, be it an interrupt or a cancellation, closes
the connection: nobody ever reads another's answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import Error, pq
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, ExecStatus, PollingStatus

from holdfast.backends.eyes import READ, WRITE
from holdfast.backends.pool import Pool
from holdfast.backends.postgresql import answers
from holdfast.backends.postgresql.address import Place, Server, attempts
from holdfast.backends.postgresql.answers import NoTables, OnceMore
from holdfast.backends.postgresql.schema import NEWEST, VERSION, tables
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from holdfast.backends.eyes import Eyes
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Runtime

STATEMENT_MAX = 4.5  # seconds: a bit less than we wait, so that the server says itself that it has given up
ONCE_MORE_PAUSE = 0.02  # seconds, at most, before a statement that met another one is given again
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
# Our own session, so nobody minds. READ COMMITTED, since the functions look again after they have locked a row. Plain
# index scans only: they step over the rows of earlier tickets, whereas what the planner prefers for tables as small as
# these reads every one of them until the next vacuum. And who turned synchronous_commit off did not think of locks:
# what was granted must not be forgotten by a crash.
_SETTINGS = f"""SET statement_timeout = {round(STATEMENT_MAX * 1000)};
SET default_transaction_isolation = 'read committed';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"""

_POOLER_LOOKS = 3  # a busy one may by chance lend the same session twice
_CREATING = 7521962889421  # the advisory lock of those who create our tables


class Wire:
    """One connection."""

    __slots__ = ("__weakref__", "_eyes", "_now", "_prepared", "_results", "_url", "is_asking", "pgconn", "pid")

    def __init__(self, url: str, eyes: Eyes, runtime: Runtime) -> None:
        self.pgconn: PGconn | None = None
        self._url, self._eyes, self._now = url, eyes, runtime.now
        self._prepared: set[str] = set()
        self._results: list[PGresult] = []  # what has come so far of an answer
        self.is_asking = False  # there is a statement that may take long: `ask_long`
        self.pid = 0  # of the server's process at the other end

    async def connect(self, conninfo: str, until: float) -> None:
        """Raises psycopg's Error or an OSError if that does not work out."""
        self.pgconn = pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            if pgconn.status == ConnStatus.BAD:
                raise _failed(pgconn)
            events = WRITE  # as if the last poll had said so
            while True:
                if not await self._eyes.ready([(pgconn.socket, events)], until):
                    raise TimeoutError("no answer in time")
                match pgconn.connect_poll():
                    case PollingStatus.OK:
                        break
                    case PollingStatus.READING:
                        events = READ
                    case PollingStatus.WRITING:
                        events = WRITE
                    case _:
                        raise _failed(pgconn)
            pgconn.nonblocking = 1
            self.pid = pgconn.backend_pid
        except BaseException:
            self.close()
            raise

    async def ask(self, statement: Statement, schema: str, values: Sequence[Value], deadline: float) -> list[Row]:
        name = statement.name.encode()
        if statement.name not in self._prepared:
            sql = statement.sql.replace("{schema}", schema).encode()
            try:
                await self._exchange(lambda pgconn: pgconn.send_prepare(name, sql), deadline)
            except OutcomeUnknown as error:  # of preparing, that is: it has not been executed
                raise BackendUnavailable(backend=self._url, problem=error.problem) from error
            self._prepared.add(statement.name)
        encoded = [_encode(value) for value in values]
        return await self._exchange(lambda pgconn: pgconn.send_query_prepared(name, encoded), deadline)

    async def process(self, deadline: float) -> int:
        """The number of the server's process that answers."""
        ((pid,),) = await self.say("SELECT pg_backend_pid()", deadline)
        return int(pid or 0)

    async def say(self, sql: str, deadline: float) -> list[Row]:
        """One or more plain statements, in one transaction; the rows of the last."""
        return await self._exchange(lambda pgconn: pgconn.send_query(sql.encode()), deadline)

    async def ask_long(self, sql: str, until: float) -> bool:
        """Say it, unless it was said before and is not answered yet; whether it is answered by then.

        A wire that was closed before the answer came goes on to say that it `is_asking`: the server may do so still.
        """
        pgconn = self._open()
        try:
            if not self.is_asking:
                self.is_asking = True
                pgconn.send_query(sql.encode())
            if not await self._finish(pgconn, until):
                return False
        except BaseException as failure:
            self.close()
            if isinstance(failure, Error):
                raise answers.no_answer(self._url, f"no answer came: {_words(failure)}") from failure
            raise
        self.is_asking = False
        self._said(pgconn)
        return True

    def heard(self) -> list[str]:
        """Read what has arrived; the payloads of notifications.

        Raises:
            OutcomeUnknown: the connection has ended.
        """
        pgconn = self._open()
        try:
            pgconn.consume_input()
            said = []
            while (notification := pgconn.notifies()) is not None:
                said.append(notification.extra.decode(errors="replace"))
        except Error as error:
            self.close()
            raise answers.no_answer(self._url, f"the connection broke while we listened: {_words(error)}") from error
        return said

    @property
    def is_open(self) -> bool:
        return self.pgconn is not None

    def is_dead(self) -> bool:
        """The server has closed it, or said something that nobody asked for."""
        if self.pgconn is None or self.pgconn.status != ConnStatus.OK:
            return True
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        pgconn, self.pgconn = self.pgconn, None
        if pgconn is not None:
            pgconn.finish()

    def abandon(self) -> None:
        """In a forked child: the descriptor only. psycopg itself says nothing on it, for it is another process's."""
        pgconn, self.pgconn = self.pgconn, None
        if pgconn is not None:
            with contextlib.suppress(OSError, Error):
                os.close(pgconn.socket)

    async def _exchange(self, send: Callable[[PGconn], None], deadline: float) -> list[Row]:
        pgconn = self._open()
        if deadline <= self._now():
            raise answers.not_connected(self._url, "there was no time left to ask")
        try:
            send(pgconn)
            if not await self._finish(pgconn, deadline):
                raise answers.no_answer(self._url, "no answer in time")
        except BaseException as failure:
            self.close()
            if isinstance(failure, Error):
                raise answers.no_answer(self._url, f"no answer came: {_words(failure)}") from failure
            raise
        return self._said(pgconn)

    async def _finish(self, pgconn: PGconn, until: float) -> bool:
        """Send the rest, and read the answer to its end; False if that has not come by then."""
        while pgconn.flush():
            if not await self._eyes.ready([(pgconn.socket, READ | WRITE)], until):
                return False
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                if not await self._eyes.ready([(pgconn.socket, READ)], until):
                    return False
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return True
            self._results.append(result)

    def _said(self, pgconn: PGconn) -> list[Row]:
        """What the answer says, good or bad."""
        results, self._results = self._results, []
        bad = next((result for result in results if result.status not in _GOOD), None)
        error = None if bad is None else answers.refusal(bad, self._url)
        if pgconn.status != ConnStatus.OK and not isinstance(error, OutcomeUnknown):
            error = answers.no_answer(self._url, f"the connection broke: {pgconn.get_error_message().strip()}")
        if error is not None:
            if isinstance(error, BackendError):
                self.close()  # broken; or, say, a standby by now: the next one may lead to the primary
            raise error
        return _rows(results[-1])

    def _open(self) -> PGconn:
        if self.pgconn is None:
            raise answers.not_connected(self._url, "the connection is closed")
        return self.pgconn


class Lines:
    """The connections of one client, and the tables they lead to."""

    def __init__(self, place: Place, eyes: Eyes, runtime: Runtime) -> None:
        self._place, self._eyes, self._runtime, self._now = place, eyes, runtime, runtime.now
        self._pool = Pool(place.url, self.open, runtime)
        self._wires: weakref.WeakSet[Wire] = weakref.WeakSet()  # all of them, also those that belong to somebody
        self._has_tables = False

    async def ask(self, statement: Statement, values: Sequence[Value], deadline: float) -> list[Row]:
        wire = self._pool.take() or await self._pool.wait(deadline)
        try:
            rows = await self.ask_on(wire, statement, values, deadline)
        except HoldfastError:
            self._pool.give(wire)
            raise
        except BaseException:
            wire.close()
            raise
        self._pool.give(wire)
        return rows

    async def ask_on(self, wire: Wire, statement: Statement, values: Sequence[Value], deadline: float) -> list[Row]:
        """On this connection, once more if it was in somebody's way, and after our tables were made if need be."""
        some: NoTables | None = None
        while True:
            try:
                if not self._has_tables:
                    await self._meet_tables(wire, deadline, some)
                return await wire.ask(statement, self._place.schema, values, deadline)
            except OnceMore as met:
                pause = ONCE_MORE_PAUSE * self._runtime.jitter()
                if self._now() + pause >= deadline:
                    raise answers.not_connected(self._place.url, f"others were in the way all the time: {met}") from met
                await self._runtime.sleep(pause)
            except NoTables as missing:
                if some is not None:
                    raise answers.not_connected(self._place.url, str(missing)) from missing
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
                    found[server] = await self._eyes.addresses(server.host, server.port, deadline)
                except OSError as error:
                    problem = f"{server.host}: {error}"
        tries = attempts(place, found)
        for number, told in enumerate(tries):
            now = self._now()
            # Who does not answer must leave time to try the others.
            until = now + (deadline - now) / (len(tries) - number)
            wire = Wire(url, self._eyes, self._runtime)
            self._wires.add(wire)
            try:
                await wire.connect(make_conninfo(**told), until)
                is_pooled = await self._is_pooled(wire, told, until)
                if not is_pooled:
                    await wire.say(_SETTINGS, until)
            except (Error, OSError) as error:
                problem = _words(error)
            except (HoldfastError, OnceMore, NoTables) as error:
                wire.close()
                problem = error.problem if isinstance(error, BackendError) else str(error)
            except BaseException:
                wire.close()
                raise
            else:
                if is_pooled:
                    wire.close()
                    raise answers.pooled(url)
                return wire
        raise answers.not_connected(url, problem)

    async def _is_pooled(self, wire: Wire, told: Mapping[str, str], until: float) -> bool:
        """What lends its sessions for one transaction at a time is between us and the server.

        A pooler of any kind shows in the number of the process that we talk to, which it cannot know when it lets us
        in. If that number changes, or is another client's too, it is one of that kind. Found out before the first
        setting is made: it would be made in somebody else's session.
        """
        first = await wire.process(until)
        if first == wire.pid:
            return False
        other = Wire(self._place.url, self._eyes, self._runtime)
        self._wires.add(other)
        try:
            await other.connect(make_conninfo(**told), until)
            for _ in range(_POOLER_LOOKS):
                if await other.process(until) == first or await wire.process(until) != first:
                    return True
        finally:
            other.close()
        wire.pid = first
        return False

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

    async def _meet_tables(self, wire: Wire, deadline: float, missing: NoTables | None = None) -> None:
        """Find our tables, or create them. Whatever happens here, nothing of what the caller wants was sent yet.

        `missing`: something is, even if the version says that they are there.
        """
        schema = self._place.schema
        try:
            try:
                rows = await wire.say(f"SELECT max(version) FROM {schema}.holdfast_schema", deadline)  # noqa: S608
                found = int(rows[0][0] or 0)
            except NoTables:
                found = 0
            if found > VERSION:
                raise ConfigurationError(
                    f"{self._place.url}: the tables in schema {schema} are of a newer holdfast (version {found}, "
                    f"this one knows {VERSION}): use that one, or another schema"
                )
            if found < VERSION or missing is not None:
                await self._create_tables(wire, deadline, missing if found else None)
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
        self._has_tables = True

    async def _create_tables(self, wire: Wire, deadline: float, missing: NoTables | None) -> None:
        schema = self._place.schema
        try:
            exists = await wire.say(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema[1:-1]}'", deadline)  # noqa: S608
            # Asked first: IF NOT EXISTS needs the right to create a schema even where it exists.
            create = "" if exists else f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
            # One creates, the others wait for it and find it done.
            await wire.say(f"SELECT pg_advisory_xact_lock({_CREATING});\n{create}{tables(schema[1:-1])}", deadline)
        except HoldfastError as error:
            refused = answers.not_created(error, self._place.url, missing)
            if refused is error:
                raise
            raise refused from error


def _rows(result: PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [tuple(_decode(result.get_value(row, column)) for column in columns) for row in range(result.ntuples)]


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _encode(value: Value) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return str(value).encode()


def _failed(pgconn: PGconn) -> ConnectionError:
    return ConnectionError(pgconn.get_error_message().strip() or "cannot connect")


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
