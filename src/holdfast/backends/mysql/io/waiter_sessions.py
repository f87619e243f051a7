"""The waiter sessions of method=row: each ticket locks the gate row of its lock in an open transaction.

A ticket has its own connection for as long as it waits or holds. The connection also holds a named lock of the server,
with the nonce in its name, so that any client can find this connection and kill exactly it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.backends.mysql.io.connection import Connection, literal
from holdfast.backends.mysql.port import PeriodicCheck, Statement
from holdfast.backends.mysql.sql import REAP_ROWS
from holdfast.backends.net.pool import ConnectionPool, pop
from holdfast.backends.sql_connections import TablesMissing, TransactionConflict, unavailable
from holdfast.core.engine import IO_TIMEOUT
from holdfast.errors import BackendError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.io.connections import Connections
    from holdfast.core.ports import Runtime

IDLE_MAX = 4  # idle connections that are kept for the next ticket
_UNLIMITED = 1 << 30  # connections: each ticket has its own
CREATES_MAX = 3  # times that a gate row is created because another client removed it
REMOVE_BATCH = 64  # gate rows that are removed in one transaction, at most
POLL = 0.05  # seconds between attempts when less than a second is left, at most: the server waits whole seconds only
_GRACE = 1.0  # seconds that an answer may take after the end of the server's wait

# The session stays open in a transaction for as long as the ticket holds the lock.
_SETTINGS = (
    "SET SESSION wait_timeout = 31536000 /*M! , idle_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"
)
# It names both tables, so that both are created here if one is missing.
_GATE_EXISTS = Statement(
    "gate", "SELECT 1 FROM holdfast_gates g LEFT JOIN holdfast_sessions s ON FALSE WHERE g.id = {0}"
)
_CREATE_GATE = Statement("build_gate", "INSERT IGNORE INTO holdfast_gates (id) VALUES ({0})")
_GATE_HOLDER = Statement(
    "in_gate",
    "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT nonce FROM holdfast_gates WHERE id = {0}",
)
# Gate rows of locks that have no row any more: {0} is the first id, {1} the number of rows to examine.
_ORPHANS = Statement(
    "orphan_gates",
    "SELECT HEX(g.id) FROM (SELECT id FROM holdfast_gates WHERE id >= {0} ORDER BY id LIMIT {1}) AS g "
    "WHERE NOT EXISTS (SELECT 1 FROM holdfast_locks l WHERE l.id = g.id)",
)
_REMOVE = (
    "START TRANSACTION; SELECT id FROM holdfast_gates WHERE id IN ({0}) FOR UPDATE NOWAIT; "
    "DELETE FROM holdfast_gates WHERE id IN ({0}); COMMIT"
)
_SELECT = "SELECT id FROM holdfast_gates WHERE id = {} FOR UPDATE"
# The client of this connection. Never committed: other clients read it with READ UNCOMMITTED, and it ends with the
# transaction, also if the client is stopped or dead.
_REGISTER_SESSION = "INSERT INTO holdfast_sessions (id, nonce, client) VALUES ({}, {}, {})"
_SAME_CLIENT = Statement(
    "same_client",
    "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT s.nonce FROM holdfast_sessions o "
    "JOIN holdfast_sessions s ON s.id = o.id AND s.client = o.client AND s.nonce <> o.nonce "
    "WHERE o.id = {0} AND o.nonce = {1} AND o.client <> {2}",
)
# One statement: between a query for the connection id and a KILL, the connection could have passed to another ticket.
# If no connection holds the named lock, the server reports an unknown thread id (1094), and nothing happens.
_KILL = Statement("kill", "KILL IS_USED_LOCK({0})")


class Session:
    """The connection of one ticket."""

    __slots__ = ("connection", "has_row_lock", "is_busy")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.has_row_lock = False
        self.is_busy = False  # a request is in progress on it


class WaiterSessions:
    """The sessions of one client."""

    def __init__(self, connections: Connections, runtime: Runtime, url: str) -> None:
        self._connections, self._runtime, self._url = connections, runtime, url
        self._client = runtime.nonce()
        self._sessions: dict[str, Session] = {}  # by nonce
        self._pool: ConnectionPool[Connection] = ConnectionPool(url, self._open_connection, runtime, _UNLIMITED)
        self._mutex = runtime.mutex()

    def has_row_lock(self, nonce: str) -> bool:
        session = self._sessions.get(nonce)
        return session is not None and session.has_row_lock and not session.connection.is_dead()

    async def try_acquire(self, key: bytes, nonce: str, *, deadline: float) -> bool:
        session = await self._session(key, nonce, deadline)
        return session.has_row_lock or await self._lock(session, key, nonce, 0, deadline)

    async def wait(self, key: bytes, nonce: str, until: float, check: PeriodicCheck) -> None:
        session = await self._session(key, nonce, self._io_deadline(until + _GRACE))

        async def run_unless_released() -> float:
            if self._sessions.get(nonce) is not session:
                raise unavailable(self._url, "this ticket was released")
            due_at = await check.run()
            return due_at if due_at < until else float("inf")

        checks = PeriodicCheck(run_unless_released, check.due_at)
        while (seconds := until - self._runtime.now()) > 0 and not session.has_row_lock:
            if not await self._lock(session, key, nonce, int(seconds), until + _GRACE, check=checks) and seconds < 1:
                await self._runtime.sleep(min(seconds, POLL * (0.5 + self._runtime.jitter() / 2)))

    async def probe(self, nonce: str, *, deadline: float) -> bool:
        with self._mutex:
            session = self._sessions.get(nonce)
            if session is None or not session.has_row_lock:
                return False
            if session.is_busy:
                return True  # another request on it is in progress, and reports an error
            session.is_busy = True
        try:
            if session.connection.is_dead():
                return False
            await session.connection.query("DO 0", deadline)
        except (BackendError, TransactionConflict, TablesMissing):
            return False
        finally:
            session.is_busy = False
        return True

    async def release(self, nonce: str, *, deadline: float) -> None:
        with self._mutex:
            session = self._sessions.get(nonce)
            if session is None:
                return
            is_ours = not session.is_busy and session.connection.is_open
            if is_ours:
                del self._sessions[nonce]  # from here on no other thread uses it
        if not is_ours:
            # A request on it is in progress, which then fails; or it was closed here, which the server may not have
            # noticed.
            await self.terminate(nonce, deadline=deadline)
            self._sessions.pop(nonce, None)
            return
        connection = session.connection
        if not connection.is_dead():
            with contextlib.suppress(
                BackendError, TransactionConflict, TablesMissing
            ):  # a failure closes the connection
                await connection.query(f"ROLLBACK; DO RELEASE_LOCK({_named_lock(nonce)})", deadline)
                self._keep(connection)
                return
        self._pool.discard(connection)

    async def holder(self, key: bytes, *, deadline: float) -> str | None:
        rows = (await self._connections.execute(_GATE_HOLDER, (key,), deadline=deadline)).rows
        return rows[0][0] if rows else None

    async def terminate(self, nonce: str, *, deadline: float) -> None:
        with contextlib.suppress(BackendError):  # it has ended, or belongs to another user and ends with its lease
            await self._connections.execute(_KILL, (f"holdfast:{nonce}",), deadline=deadline)

    async def terminate_client(self, key: bytes, nonce: str, *, deadline: float) -> None:
        rows = (await self._connections.execute(_SAME_CLIENT, (key, nonce, self._client), deadline=deadline)).rows
        for (other,) in rows:
            await self.terminate(other or "", deadline=deadline)
        await self.terminate(nonce, deadline=deadline)

    async def reap(self, key: bytes, *, deadline: float) -> None:
        rows = (await self._connections.execute(_ORPHANS, (key, REAP_ROWS), deadline=deadline)).rows
        keys = [literal(bytes.fromhex(row[0] or "")) for row in rows]
        if not keys:
            return
        connection = await self._take(deadline)
        try:
            for start in range(0, len(keys), REMOVE_BATCH):
                try:
                    await connection.query(_REMOVE.format(", ".join(keys[start : start + REMOVE_BATCH])), deadline)
                except TransactionConflict:  # one of them is locked: they stay until the next reap
                    await connection.query("ROLLBACK", deadline)
        except BaseException as error:
            self._pool.put_after(connection, error)
            raise
        self._keep(connection)

    def close(self) -> None:
        """A session with a request in progress is closed by that request, which checks soon whether it was released."""
        with self._mutex:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        self._pool.close()
        for session in sessions:
            if not session.is_busy:
                session.connection.close()

    def abandon(self) -> None:
        self._mutex = self._runtime.mutex()  # another thread of the parent may have held it
        self._pool.abandon()  # `Connections` abandons the connections themselves
        self._sessions.clear()

    async def _session(self, key: bytes, nonce: str, deadline: float) -> Session:
        session = self._sessions.get(nonce)
        if session is not None and not session.connection.is_dead():
            return session
        try:
            exists = bool((await self._connections.execute(_GATE_EXISTS, (key,), deadline=deadline)).rows)
        except BackendError:
            # No answer on a connection of the other pool: the idle connections of this pool may have vanished too.
            while (idle := pop(self._pool.idle)) is not None:
                self._pool.discard(idle)
            raise
        if not exists:
            await self._connections.execute(_CREATE_GATE, (key,), deadline=deadline)
        backoff = 0
        if session is not None:
            self._pool.discard(session.connection)
            await self.terminate(nonce, deadline=deadline)
            backoff = 1  # second: a killed connection needs a moment to end
        connection = await self._take(deadline)
        session = self._sessions[nonce] = Session(connection)
        try:
            # A missing answer, here or in `_lock`, closes the connection, which releases its locks. The server accepted
            # the connection before, so this is OutcomeUnknown, and the request is repeated. BackendUnavailable means
            # that the server refuses connections.
            answer = await connection.query(f"SELECT GET_LOCK({_named_lock(nonce)}, {backoff})", deadline)
        except BackendError as error:
            self._pool.put_after(connection, error)  # no answer: other idle connections may have vanished too
            raise
        if answer.rows != [("1",)]:
            self._pool.discard(connection)
            raise unavailable(self._url, "an earlier connection of this ticket has not ended yet")
        return session

    async def _take(self, deadline: float) -> Connection:
        return self._pool.get_idle(self._runtime.now()) or await self._pool.open_or_wait(deadline)

    def _keep(self, connection: Connection) -> None:
        """Keep the connection for the next ticket, unless enough are idle."""
        if len(self._pool.idle) >= IDLE_MAX:
            self._pool.discard(connection)
        else:
            self._pool.put(connection)

    async def _open_connection(self, deadline: float) -> Connection:
        connection = await self._connections.open(deadline)
        try:
            await connection.query(_SETTINGS, deadline)
        except OutcomeUnknown as error:
            raise unavailable(error.backend, error.problem) from error
        return connection

    async def _lock(
        self,
        session: Session,
        key: bytes,
        nonce: str,
        seconds: int,
        deadline: float,
        *,
        check: PeriodicCheck | None = None,
    ) -> bool:
        """Lock the gate row within that many seconds; whether the session has the lock."""
        connection = session.connection
        begin, how = ("", " NOWAIT") if seconds == 0 else (f"SET SESSION innodb_lock_wait_timeout = {seconds}; ", "")
        with self._mutex:
            if session.is_busy or self._sessions.get(nonce) is not session:
                raise unavailable(self._url, "this ticket was released")
            session.is_busy = True
        try:
            # One request, so that a client that is stopped during it has written its nonce once it has the row lock.
            # The nonce is never committed; other clients read it with READ UNCOMMITTED.
            write_nonce = f"UPDATE holdfast_gates SET nonce = {literal(nonce)} WHERE id = {literal(key)}"  # noqa: S608
            register = _REGISTER_SESSION.format(literal(key), literal(nonce), literal(self._client))
            select = f"{begin}START TRANSACTION; {register}; {_SELECT.format(literal(key))}{how}"
            for _ in range(CREATES_MAX):
                try:
                    answer = await connection.query(f"{select}; {write_nonce}", deadline, check)
                except TransactionConflict:
                    await connection.query("ROLLBACK", self._io_deadline(deadline))
                    return False
                if answer.rows:
                    session.has_row_lock = True
                    return True
                # The gate row was removed, by `reap` of another client or by an operator.
                await connection.query("ROLLBACK", self._io_deadline(deadline))
                await self._connections.execute(_CREATE_GATE, (key,), deadline=self._io_deadline(deadline))
            raise unavailable(self._url, "the gate row of this lock was removed again and again")
        finally:
            session.is_busy = False

    def _io_deadline(self, deadline: float) -> float:
        """The deadline of a request that the server executes at once, even if the caller can wait longer."""
        return min(deadline, self._runtime.now() + IO_TIMEOUT)


def _named_lock(nonce: str) -> str:
    return literal(f"holdfast:{nonce}")
