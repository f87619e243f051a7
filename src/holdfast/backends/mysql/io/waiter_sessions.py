"""Connections that hold a gate: a row, locked in an open transaction, for which others wait inside the server.

Each has a connection of its own, for as long as it waits or is in, and marks it with a named lock of the server's that
carries its nonce: so whoever has to can find out which connection it is, and end exactly that one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.backends.mysql.io import errors
from holdfast.backends.mysql.io.connection import Connection, PeriodicCheck, literal
from holdfast.backends.mysql.io.errors import TablesMissing, TransactionConflict
from holdfast.backends.mysql.port import Statement
from holdfast.backends.mysql.sql import REAP_ROWS
from holdfast.backends.net.pool import ConnectionPool, pop
from holdfast.core.engine import IO_TIMEOUT
from holdfast.errors import BackendError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.io.connections import Connections
    from holdfast.core.ports import Runtime

IDLE_MAX = 4  # connections that are kept for the next gate
_ANY_NUMBER = 1 << 30  # of connections: each ticket has its own
CREATES_MAX = 3  # times that a gate is built because it was removed meanwhile
REMOVE_BATCH = 64  # gates, at most, in one transaction
POLL = 0.05  # seconds, at most, between attempts where less than a second is left: the server waits whole ones
_GRACE = 1.0  # seconds that an answer may come late, after the server's own wait

# Of their own: kept open, in a transaction, for as long as somebody is in.
_SETTINGS = (
    "SET SESSION wait_timeout = 31536000 /*M! , idle_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"
)
# Both tables are named, so that both are created here if one is missing.
_GATE_EXISTS = Statement(
    "gate", "SELECT 1 FROM holdfast_gates g LEFT JOIN holdfast_sessions s ON FALSE WHERE g.id = {0}"
)
_CREATE_GATE = Statement("build_gate", "INSERT IGNORE INTO holdfast_gates (id) VALUES ({0})")
_GATE_HOLDER = Statement(
    "in_gate",
    "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT nonce FROM holdfast_gates WHERE id = {0}",
)
# Of locks that have no row any more: {0} is where to begin, {1} how many to look at.
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
# Which client this connection belongs to. Never committed: other clients read it as READ UNCOMMITTED, and it ends with
# the transaction, also if the client is stopped or dead.
_REGISTER_SESSION = "INSERT INTO holdfast_sessions (id, nonce, client) VALUES ({}, {}, {})"
_SAME_CLIENT = Statement(
    "same_client",
    "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; SELECT s.nonce FROM holdfast_sessions o "
    "JOIN holdfast_sessions s ON s.id = o.id AND s.client = o.client AND s.nonce <> o.nonce "
    "WHERE o.id = {0} AND o.nonce = {1} AND o.client <> {2}",
)
# One statement: between a look at the number and a KILL of it, the connection could have become another ticket's.
# Where no connection has the mark, the server knows no such number (1094), and nothing happens.
_KILL = Statement("kill", "KILL IS_USED_LOCK({0})")


class Session:
    """One connection, for one ticket."""

    __slots__ = ("connection", "has_row_lock", "is_busy")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.has_row_lock = False
        self.is_busy = False  # somebody is waiting on it, inside the server


class WaiterSessions:
    """Those of one client."""

    def __init__(self, connections: Connections, runtime: Runtime, url: str) -> None:
        self._connections, self._runtime, self._url = connections, runtime, url
        self._client = runtime.nonce()
        self._sessions: dict[str, Session] = {}  # by nonce
        self._pool: ConnectionPool[Connection] = ConnectionPool(url, self._open_connection, runtime, _ANY_NUMBER)
        self._mutex = runtime.mutex()

    def has_row_lock(self, nonce: str) -> bool:
        """It has its gate, as far as can be seen from here."""
        session = self._sessions.get(nonce)
        return session is not None and session.has_row_lock and not session.connection.is_dead()

    async def try_acquire(self, key: bytes, nonce: str, *, deadline: float) -> bool:
        """Lock the gate if nobody has; whether we have it.

        Raises:
            BackendUnavailable: could not be asked.
            OutcomeUnknown: no answer; nothing changed that another connection would see, and it may be asked again.
        """
        session = await self._session(key, nonce, deadline)
        return session.has_row_lock or await self._lock(session, key, nonce, 0, deadline)

    async def wait(self, key: bytes, nonce: str, until: float, check: PeriodicCheck) -> None:
        """Lock the gate as soon as it is ours to lock, or give up at `until`. Errors as `try_acquire`."""
        session = await self._session(key, nonce, self._io_deadline(until + _GRACE))

        async def unless_it_has_left() -> float:
            if self._sessions.get(nonce) is not session:
                raise errors.unavailable(self._url, "this ticket has left")
            again = await check.run()
            return again if again < until else float("inf")

        checks = PeriodicCheck(unless_it_has_left, check.due_at)
        while (left := until - self._runtime.now()) > 0 and not session.has_row_lock:
            if not await self._lock(session, key, nonce, int(left), until + _GRACE, check=checks) and left < 1:
                await self._runtime.sleep(min(left, POLL * (0.5 + self._runtime.jitter() / 2)))

    async def probe(self, nonce: str, *, deadline: float) -> bool:
        """It has its gate: the server says so."""
        with self._mutex:
            session = self._sessions.get(nonce)
            if session is None or not session.has_row_lock:
                return False
            if session.is_busy:
                return True  # somebody else is asking just now, and will tell
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
        """Unlock the gate, or wait for it no longer."""
        with self._mutex:
            session = self._sessions.get(nonce)
            if session is None:
                return
            is_ours = not session.is_busy and session.connection.is_open
            if is_ours:
                del self._sessions[nonce]  # nobody else speaks on it from here on
        if not is_ours:
            # Somebody waits on it, and will hear of this; or it was closed here, which the server may not have noticed.
            await self.terminate(nonce, deadline=deadline)
            self._sessions.pop(nonce, None)
            return
        connection = session.connection
        if not connection.is_dead():
            with contextlib.suppress(
                BackendError, TransactionConflict, TablesMissing
            ):  # if it fails, it closes the connection
                await connection.query(f"ROLLBACK; DO RELEASE_LOCK({_named_lock(nonce)})", deadline)
                self._keep(connection)
                return
        self._pool.discard(connection)

    async def holder(self, key: bytes, *, deadline: float) -> str | None:
        """The nonce of who has the gate, or has just asked for it."""
        rows = (await self._connections.execute(_GATE_HOLDER, (key,), deadline=deadline)).rows
        return rows[0][0] if rows else None

    async def terminate(self, nonce: str, *, deadline: float) -> None:
        """End the connection that this ticket has its gate by, or waits for it on; whoever's it is."""
        with contextlib.suppress(BackendError):  # it went by itself; or is another user's, which takes its own time
            await self._connections.execute(_KILL, (f"holdfast:{nonce}",), deadline=deadline)

    async def terminate_client(self, key: bytes, nonce: str, *, deadline: float) -> None:
        """The same for this ticket, which has the gate, after all others of its client that wait for this gate.

        If the client is our own, it is alive, and only this ticket is concerned.
        """
        rows = (await self._connections.execute(_SAME_CLIENT, (key, nonce, self._client), deadline=deadline)).rows
        for (other,) in rows:
            await self.terminate(other or "", deadline=deadline)
        await self.terminate(nonce, deadline=deadline)

    async def reap(self, key: bytes, *, deadline: float) -> None:
        """Remove gates of locks that have no row any more, from this key on. A gate that is locked stays."""
        rows = (await self._connections.execute(_ORPHANS, (key, REAP_ROWS), deadline=deadline)).rows
        keys = [literal(bytes.fromhex(row[0] or "")) for row in rows]
        if not keys:
            return
        connection = await self._take(deadline)
        try:
            for start in range(0, len(keys), REMOVE_BATCH):
                try:
                    await connection.query(_REMOVE.format(", ".join(keys[start : start + REMOVE_BATCH])), deadline)
                except TransactionConflict:  # one of them is locked: they stay until the next time
                    await connection.query("ROLLBACK", deadline)
        except BaseException as error:
            self._pool.put_after(connection, error)
            raise
        self._keep(connection)

    def close(self) -> None:
        """Those that somebody waits on are closed by who waits; it was told before, or looks again soon."""
        with self._mutex:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        self._pool.close()
        for session in sessions:
            if not session.is_busy:
                session.connection.close()

    def abandon(self) -> None:
        self._mutex = self._runtime.mutex()  # another thread of the parent may have had it
        self._pool.abandon()  # the wires themselves are known to the lines
        self._sessions.clear()

    async def _session(self, key: bytes, nonce: str, deadline: float) -> Session:
        session = self._sessions.get(nonce)
        if session is not None and not session.connection.is_dead():
            return session
        try:
            is_there = bool((await self._connections.execute(_GATE_EXISTS, (key,), deadline=deadline)).rows)
        except BackendError:
            # No answer on a connection of the other pool: the idle ones of this pool may have vanished with it.
            while (idle := pop(self._pool.idle)) is not None:
                self._pool.discard(idle)
            raise
        if not is_there:
            await self._connections.execute(_CREATE_GATE, (key,), deadline=deadline)
        backoff = 0
        if session is not None:
            self._pool.discard(session.connection)
            await self.terminate(nonce, deadline=deadline)
            backoff = 1  # second: to be ended takes a moment
        connection = await self._take(deadline)
        session = self._sessions[nonce] = Session(connection)
        try:
            answer = await self._query(session, f"SELECT GET_LOCK({_named_lock(nonce)}, {backoff})", deadline)
        except BackendError as error:
            self._pool.put_after(connection, error)  # no answer: other idle connections may have vanished with this one
            raise
        if answer != [("1",)]:
            self._pool.discard(connection)
            raise errors.unavailable(self._url, "an earlier connection of this ticket has not ended yet")
        return session

    async def _take(self, deadline: float) -> Connection:
        return self._pool.get_idle(self._runtime.now()) or await self._pool.open_or_wait(deadline)

    def _keep(self, connection: Connection) -> None:
        """For the next gate, if there are not enough."""
        if len(self._pool.idle) >= IDLE_MAX:
            self._pool.discard(connection)
        else:
            self._pool.put(connection)

    async def _open_connection(self, deadline: float) -> Connection:
        connection = await self._connections.open(deadline)
        try:
            await connection.query(_SETTINGS, deadline)
        except OutcomeUnknown as error:
            raise errors.unavailable(error.backend, error.problem) from error
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
        """Within that many seconds, if nobody else has it; whether we have it."""
        begin, how = ("", " NOWAIT") if seconds == 0 else (f"SET SESSION innodb_lock_wait_timeout = {seconds}; ", "")
        with self._mutex:
            if session.is_busy or self._sessions.get(nonce) is not session:
                raise errors.unavailable(self._url, "this ticket has left")
            session.is_busy = True
        try:
            # One request: who is stopped meanwhile is known by name once it has the gate. The nonce is for those who
            # look at what is not committed: it never is.
            write_nonce = f"UPDATE holdfast_gates SET nonce = {literal(nonce)} WHERE id = {literal(key)}"  # noqa: S608
            register = _REGISTER_SESSION.format(literal(key), literal(nonce), literal(self._client))
            select = f"{begin}START TRANSACTION; {register}; {_SELECT.format(literal(key))}{how}"
            for _ in range(CREATES_MAX):
                try:
                    rows = await self._query(session, f"{select}; {write_nonce}", deadline, check)
                except TransactionConflict:
                    await self._query(session, "ROLLBACK", self._io_deadline(deadline))
                    return False
                if rows:
                    session.has_row_lock = True
                    return True
                # The gate was removed meanwhile: by `reap` of another client, or by hand.
                await self._query(session, "ROLLBACK", self._io_deadline(deadline))
                await self._connections.execute(_CREATE_GATE, (key,), deadline=self._io_deadline(deadline))
            raise errors.unavailable(self._url, "the row that is the lock's gate was removed again and again")
        finally:
            session.is_busy = False

    def _io_deadline(self, deadline: float) -> float:
        """For what the server does at once: no answer is none after a while, however long we are ready to wait."""
        return min(deadline, self._runtime.now() + IO_TIMEOUT)

    async def _query(
        self, session: Session, sql: str, deadline: float, check: PeriodicCheck | None = None
    ) -> list[tuple[str | None, ...]]:
        # No answer closes the connection, and what it had locked is not locked any more. But somebody was there to ask:
        # so it is OutcomeUnknown, and asked again; down, which is told at once, is a server that lets nobody in.
        return list((await session.connection.query(sql, deadline, check)).rows)


def _named_lock(nonce: str) -> str:
    return literal(f"holdfast:{nonce}")
