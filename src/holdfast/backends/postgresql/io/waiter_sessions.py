"""The waiter sessions of method=advisory: connections that wait for an advisory lock, one for each ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.pool import pop
from holdfast.errors import OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.postgresql.io.connection import Connection
    from holdfast.backends.postgresql.io.connections import Connections
    from holdfast.backends.postgresql.port import Row, Statement, Value, WaiterSession

IDLE_MAX = 4  # idle sessions that are kept for the next ticket
# A waiter may wait for long. The server checks during the wait that the client is still connected.
_SETTINGS = """SET statement_timeout = 0; SET lock_timeout = 0;
SELECT set_config(name, '1s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'"""


class WaiterSessions:
    """The waiter sessions of one client."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: list[WaiterSession] = []
        self._closed = False

    async def open(self, deadline: float) -> WaiterSession:
        while (session := pop(self._idle)) is not None:
            if session.is_open:
                return session
        connection = await self._connections.open(deadline)
        try:
            await connection.query(_SETTINGS, deadline)
        except BaseException:
            connection.close()
            raise
        return WaiterConnection(connection, self._connections, self)

    def put(self, session: WaiterSession) -> None:
        """Keep a session that is not used any more, or close it."""
        if self._closed or session.has_advisory_lock or session.is_waiting or len(self._idle) >= IDLE_MAX:
            session.close()
        else:
            self._idle.append(session)

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        while (session := pop(self._idle)) is not None:
            session.close()


class WaiterConnection:
    """A WaiterSession on a connection."""

    def __init__(self, connection: Connection, connections: Connections, sessions: WaiterSessions) -> None:
        self._connection, self._connections, self._sessions = connection, connections, sessions
        self._has_advisory_lock = False

    @property
    def is_open(self) -> bool:
        connection = self._connection
        return (connection.is_waiting and connection.is_open) or not connection.is_dead()

    @property
    def has_advisory_lock(self) -> bool:
        return self._has_advisory_lock and self.is_open

    @has_advisory_lock.setter
    def has_advisory_lock(self, has_advisory_lock: bool) -> None:
        self._has_advisory_lock = has_advisory_lock

    @property
    def is_waiting(self) -> bool:
        return self._connection.is_waiting

    @property
    def pid(self) -> int:
        return self._connection.pid

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        try:
            return await self._connections.execute_on(self._connection, statement, values, deadline)
        except OutcomeUnknown:
            self._sessions.close_idle()  # idle connections may have vanished with this one
            raise

    async def wait(self, sql: str, until: float) -> None:
        self._has_advisory_lock = await self._connection.query_long(sql, until)

    def close(self) -> None:
        self._connection.close()
