"""One connection, for threads and asyncio alike: libpq speaks the protocol, a `Poller` waits.

psycopg's own `Connection` is not used: its waits take no deadline, and after an interrupt it may wait for the server
for five more seconds. Its `pq` layer is libpq without any waiting.

A connection is reused only after a complete exchange, which ends with ReadyForQuery. The transaction is committed only
then, although its rows arrive earlier. Any exception during an exchange, also an interrupt or a cancellation, closes
the connection, so that no request ever reads the answer to another.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from psycopg import Error, pq
from psycopg.pq import ConnStatus, ExecStatus, PollingStatus

from holdfast.backends.net.poller import READ, WRITE, Poller, is_readable
from holdfast.backends.net.pool import Probe, wait_ready
from holdfast.backends.postgresql.io.errors import error_from, was_not_executed
from holdfast.backends.sql_connections import one_line, outcome_unknown, unavailable
from holdfast.errors import BackendError, OutcomeUnknown

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Runtime

_PARAMETER = re.compile(r"\$([0-9]+)")
_OK_STATUSES = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Connection:
    """One connection."""

    __slots__ = (
        "__weakref__",
        "_now",
        "_poller",
        "_preamble",
        "_prepared",
        "_results",
        "_url",
        "is_waiting",
        "pgconn",
        "pid",
        "probe",
        "used_at",
    )

    def __init__(self, url: str, poller: Poller, runtime: Runtime, preamble: str = "") -> None:
        """`preamble` are statements that begin every transaction, on a connection without a session of its own."""
        self.pgconn: PGconn | None = None
        self._preamble = preamble
        self._url, self._poller, self._now = url, poller, runtime.now
        self.used_at = 0.0
        self.probe: Probe | None = None
        self._prepared: set[str] = set()
        self._results: list[PGresult] = []  # the part of an answer that has arrived
        self.is_waiting = False  # a statement of `query_long` has no answer yet
        self.pid = 0  # of the server process

    async def connect(self, conninfo: str, until: float) -> None:
        """Connect and log in. Raises psycopg's Error or an OSError."""
        self.pgconn = pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            if pgconn.status == ConnStatus.BAD:
                raise _connect_error(pgconn)
            events = WRITE  # as libpq requires before the first connect_poll()
            while True:
                if not await self._poller.poll([(pgconn.socket, events)], until):
                    raise TimeoutError("no answer in time")
                match pgconn.connect_poll():
                    case PollingStatus.OK:
                        break
                    case PollingStatus.READING:
                        events = READ
                    case PollingStatus.WRITING:
                        events = WRITE
                    case _:
                        raise _connect_error(pgconn)
            pgconn.nonblocking = 1
            self.pid = pgconn.backend_pid
        except BaseException:
            self.close()
            raise

    async def execute(self, statement: Statement, schema: str, values: Sequence[Value], deadline: float) -> list[Row]:
        if self._preamble:
            return await self.query(self._with_literals(statement.sql.replace("{schema}", schema), values), deadline)
        name = statement.name.encode()
        if statement.name not in self._prepared:
            sql = statement.sql.replace("{schema}", schema).encode()
            try:
                await self._exchange(lambda pgconn: pgconn.send_prepare(name, sql), deadline)
            except OutcomeUnknown as error:  # it was not executed: only PREPARE got no answer
                raise unavailable(self._url, error.problem) from error
            self._prepared.add(statement.name)
        encoded = _encoded(values)
        return await self._exchange(lambda pgconn: pgconn.send_query_prepared(name, encoded), deadline)

    async def backend_pid(self, deadline: float) -> int:
        """The process id of the server process that answers."""
        ((pid,),) = await self.query("SELECT pg_catalog.pg_backend_pid()", deadline)
        return int(pid or 0)

    async def query(self, sql: str, deadline: float) -> list[Row]:
        """Run one or more statements in one transaction; return the rows of the last one."""
        request = f"{self._preamble}{sql}".encode()
        return await self._exchange(lambda pgconn: pgconn.send_query(request), deadline)

    async def query_long(self, sql: str, until: float) -> bool:
        """Send a statement, or keep waiting for its answer if it was sent before; whether it is answered by `until`.

        A connection that was closed before the answer arrived still `is_waiting`: the server may not have noticed.
        """
        pgconn = self._require_open()
        try:
            if not self.is_waiting:
                self.is_waiting = True
                pgconn.send_query(sql.encode())
            if not await self._read_results(pgconn, until):
                return False
        except BaseException as failure:
            self.close()
            if isinstance(failure, Error):
                raise outcome_unknown(self._url, f"no answer came: {one_line(failure)}") from failure
            raise
        self.is_waiting = False
        self._rows_or_raise(pgconn)
        return True

    def read_notifications(self) -> list[str]:
        """The payloads of the notifications that have arrived.

        Raises:
            OutcomeUnknown: the connection has ended.
        """
        pgconn = self._require_open()
        try:
            pgconn.consume_input()
            payloads = [notification.extra.decode(errors="replace") for notification in iter(pgconn.notifies, None)]
        except Error as error:
            self.close()
            raise outcome_unknown(self._url, f"the connection broke during LISTEN: {one_line(error)}") from error
        return payloads

    @property
    def is_open(self) -> bool:
        return self.pgconn is not None

    def is_dead(self) -> bool:
        """The server has closed it, or has sent data without a request."""
        pgconn = self.pgconn
        return pgconn is None or pgconn.status != ConnStatus.OK or is_readable(pgconn.socket)

    def close(self) -> None:
        pgconn, self.pgconn = self.pgconn, None
        if pgconn is not None:
            pgconn.finish()

    def abandon(self) -> None:
        """In a forked child: close only the descriptor. The connection itself belongs to the parent."""
        pgconn, self.pgconn = self.pgconn, None
        if pgconn is not None:
            with contextlib.suppress(OSError, Error):
                os.close(pgconn.socket)

    async def _exchange(self, send: Callable[[PGconn], None], deadline: float) -> list[Row]:
        pgconn = self._require_open()
        if deadline <= self._now():
            raise unavailable(self._url, "no time was left to send the request")
        try:
            send(pgconn)
            if not await self._read_results(pgconn, deadline):
                raise outcome_unknown(self._url, "no answer in time")
        except BaseException as failure:
            refusal = self._refusal(pgconn) if isinstance(failure, Error) else None
            self.close()
            if refusal is not None:
                raise refusal from failure
            if isinstance(failure, Error):
                raise outcome_unknown(self._url, f"no answer came: {one_line(failure)}") from failure
            raise
        return self._rows_or_raise(pgconn)

    def _refusal(self, pgconn: PGconn) -> Exception | None:
        """The error for a request that a pooler has refused, if the refusal arrived before the connection ended."""
        with contextlib.suppress(Error):
            while True:  # without a condition, as in `Engine.acquire_new`
                if pgconn.is_busy() or (result := pgconn.get_result()) is None:
                    break
                self._results.append(result)
        refused = next((result for result in self._results if was_not_executed(result)), None)
        return None if refused is None else error_from(refused, self._url)

    async def _read_results(self, pgconn: PGconn, until: float) -> bool:
        """Send the rest of the request and read the whole answer; False if it is not complete at `until`."""
        while pgconn.flush():
            if not await self._poller.poll([(pgconn.socket, READ | WRITE)], until):
                return False
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                if not await wait_ready(self, self._poller, pgconn.socket, READ, until):
                    return False
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return True
            self._results.append(result)

    def _rows_or_raise(self, pgconn: PGconn) -> list[Row]:
        """The rows of the answer; raise its error, if it has one."""
        results, self._results = self._results, []
        bad = next((result for result in results if result.status not in _OK_STATUSES), None)
        error = None if bad is None else error_from(bad, self._url)
        is_known = isinstance(error, OutcomeUnknown) or (bad is not None and was_not_executed(bad))
        if pgconn.status != ConnStatus.OK and not is_known:
            error = outcome_unknown(self._url, f"the connection broke: {pgconn.get_error_message().strip()}")
        if error is not None:
            if isinstance(error, BackendError):
                self.close()  # broken, or on a server that is a standby now: a new one may lead to the primary
            raise error
        return _rows(results[-1])

    def _with_literals(self, sql: str, values: Sequence[Value]) -> str:
        """The statement with its values in place of $1, $2, …: a request of several statements has no parameters."""
        escaping = pq.Escaping(self._require_open())
        literals = [
            "NULL" if value is None else bytes(escaping.escape_literal(value)).decode() for value in _encoded(values)
        ]
        return _PARAMETER.sub(lambda match: literals[int(match[1]) - 1], sql)

    def _require_open(self) -> PGconn:
        if self.pgconn is None:
            raise unavailable(self._url, "the connection is closed")
        return self.pgconn


def _rows(result: PGresult) -> list[Row]:
    get, columns = result.get_value, range(result.nfields)
    return [
        tuple([None if (value := get(row, column)) is None else value.decode() for column in columns])
        for row in range(result.ntuples)
    ]


def _encoded(values: Sequence[Value]) -> list[bytes | None]:
    """The values as text. The server reads "True" and "False" as booleans."""
    return [None if value is None else str(value).encode() for value in values]


def _connect_error(pgconn: PGconn) -> ConnectionError:
    return ConnectionError(pgconn.get_error_message().strip() or "cannot connect")
