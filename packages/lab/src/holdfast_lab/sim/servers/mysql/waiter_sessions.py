"""The server side of method=row besides the tables: sessions that lock a gate row, wait for it, and end at either end.

The shipped WaiterSessions run here with their own SQL, on simulated connections. The server sees the end of a
connection that the client has closed. The client sees the end of a session some time after the server, or, if the
network is cut, when it is whole again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.mysql.io.waiter_sessions import WaiterSessions
from holdfast.backends.mysql.port import Answer
from holdfast.backends.mysql.protocol.guarantees import GUARANTEES
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.sql_connections import TransactionConflict
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast_lab.sim.servers.database import RETRY, SessionDatabase, WaiterConnection
from holdfast_lab.sim.servers.mysql.port import SimPort
from holdfast_lab.sim.servers.mysql.server import MysqlServer
from holdfast_lab.sim.servers.subscriptions import NOTICED_MAX

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import PeriodicCheck, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

_WAIT = re.compile(r"innodb_lock_wait_timeout = (\d+); ")
_HEX = re.compile(r"x'([0-9a-f]*)'")
_NONCE = re.compile(r"SET nonce = '([0-9a-z]+)'")
_REGISTERED = re.compile(r"holdfast_sessions \(id, nonce, client\) VALUES \(x'([0-9a-f]*)', '(\w+)', '(\w+)'\)")


class SimConnection(WaiterConnection):
    """One connection. `is_dead`: the client has noticed that the session has ended, or has closed the connection."""

    port: RowPort

    def __init__(self, port: RowPort, number: int) -> None:
        super().__init__(port, number)
        self._is_dead = False
        self.used_at = 0.0
        self.probe = None
        self._answer: Answer | TransactionConflict | None = None

    def is_dead(self) -> bool:
        return self._is_dead or not self.is_open

    async def query(self, sql: str, deadline: float, check: PeriodicCheck | None = None) -> Answer:
        if not self.is_open:
            raise BackendUnavailable(backend="sim", problem="the connection is closed")
        try:
            seconds = _WAIT.search(sql)
            if seconds is not None:
                return await self._wait(sql, int(seconds[1]), deadline, check)
            return await self.request(lambda: self.port.server.query(self, sql), deadline)
        except TransactionConflict:
            raise
        except BaseException:
            self.close()
            raise

    async def _wait(self, sql: str, seconds: int, deadline: float, check: PeriodicCheck | None) -> Answer:
        """Send a statement that may take long; its answer arrives later."""
        self._answer = None
        self._event.clear()
        self._send(sql, seconds)
        while check is not None and check.due_at < deadline and not await self._event.wait(check.due_at):
            check.due_at = await check.run()
        await self._event.wait(deadline)
        if self._answer is None:
            raise OutcomeUnknown(backend="sim", problem="no answer in time")
        if isinstance(self._answer, TransactionConflict):
            raise self._answer
        return self._answer

    def _send(self, sql: str, seconds: int) -> None:
        """TCP sends lost data again, unless one of the two ends is closed."""
        server, link = self.port.server, self.port.link
        world = link.process.world
        if not self.is_open or link.process.is_dead:
            return
        if link.requests_cut or link.happens("lose_request", link.faults.lose_request):
            world.at(world.now + RETRY, self._send, sql, seconds)
        else:
            world.at(link.arrival(), server.when_running, server.query_long, self, sql, seconds)

    def reply(self, answer: Answer | TransactionConflict) -> None:
        """Send an answer from the server, likewise."""
        link = self.port.link
        world = link.process.world
        if self.is_over or link.process.is_dead:
            return
        if link.replies_cut or link.happens("lose_reply", link.faults.lose_reply):
            world.at(world.now + RETRY, self.reply, answer)
        else:
            world.at(world.now + link.delay(), link.process.do, self._receive, answer)

    def _receive(self, answer: Answer | TransactionConflict) -> None:
        if self.is_open:
            self._answer = answer
            self._event.set()

    def end_soon(self) -> None:
        link = self.port.link
        world = link.process.world
        later = RETRY if link.replies_cut else world.choices.between(0.0, NOTICED_MAX)
        world.at(world.now + later, self.end_soon if link.replies_cut else self._notify_client)

    def _notify_client(self) -> None:
        self.port.link.process.do(self._ended)

    def _ended(self) -> None:
        self._is_dead = True
        self._event.set()
        self.fail_requests()


class RowPort(SimPort):
    """A port that opens connections for waiter sessions."""

    def __init__(self, server: RowServer, link: Link, runtime: SimRuntime) -> None:
        super().__init__(server, link)
        self.server = server
        self.runtime = runtime

    async def open(self, deadline: float) -> SimConnection:
        try:
            return await self.request(lambda: self.server.new_session(self), deadline)
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend="sim", problem=error.problem) from error


class GateRow:
    """A row of holdfast_gates."""

    def __init__(self) -> None:
        self.holder: SimConnection | None = None
        self.nonce: str | None = None  # written by the holder, and not committed
        self.queue: list[tuple[SimConnection, str]] = []  # the waiting connections and their statements


class RowServer(SessionDatabase[SimConnection], MysqlServer):
    """A server for `method=row`."""

    guarantees = GUARANTEES["row"]
    connection_type = SimConnection
    sessions_type: Callable[..., Any] = WaiterSessions
    backend: Callable[..., Any] = RowBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.gate_rows: dict[bytes, GateRow] = {}
        self.named_locks: dict[bytes, SimConnection] = {}
        self.registered: dict[
            SimConnection, tuple[bytes, str, str]
        ] = {}  # rows of holdfast_sessions: gate, nonce, client

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = RowPort(self, link, runtime)
        url = "sim://mysql"
        sessions = type(self).sessions_type(port, runtime, url)
        backend: Backend = type(self).backend(url, port, sessions, runtime)
        return backend

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def release_locks(self, connection: SimConnection) -> None:
        self.named_locks = {name: holder for name, holder in self.named_locks.items() if holder is not connection}
        for gate in self.gate_rows.values():
            gate.queue = [(waiting, sql) for waiting, sql in gate.queue if waiting is not connection]
        self._roll_back(connection)

    def query(self, connection: SimConnection, sql: str) -> Answer:
        """Execute SQL in a waiter session."""
        if connection.is_over:
            raise OutcomeUnknown(backend="sim", problem="connection reset")
        if "DELETE FROM holdfast_gates" in sql:
            keys = {bytes.fromhex(value) for value in _HEX.findall(sql)}
            if any(self.gate_rows[key].holder is not None for key in keys if key in self.gate_rows):
                raise TransactionConflict("NOWAIT")
            self.gate_rows = {key: gate for key, gate in self.gate_rows.items() if key not in keys}
            return Answer()
        if "FOR UPDATE NOWAIT" in sql:
            self._register(connection, sql)
            key = _bytes(sql)
            if key in self.gate_rows and self.gate_rows[key].holder not in {None, connection}:
                raise TransactionConflict("NOWAIT")
            return self._lock(connection, sql)
        if sql.startswith("SELECT GET_LOCK"):
            holder = self.named_locks.setdefault(_bytes(sql), connection)
            return Answer(rows=[("1" if holder is connection else "0",)])
        if sql.startswith("ROLLBACK"):
            self._roll_back(connection)
            if "RELEASE_LOCK" in sql and self.named_locks.get(_bytes(sql)) is connection:
                del self.named_locks[_bytes(sql)]
            return Answer()
        if sql == "DO 0" or sql.startswith("SET SESSION wait_timeout"):
            return Answer()
        raise AssertionError(f"the model does not know this statement: {sql}")

    def query_long(self, connection: SimConnection, sql: str, seconds: int) -> None:
        """Lock a gate row within that many seconds."""
        if connection.is_over:
            connection.end_soon()
            return
        self._register(connection, sql)
        gate = self.gate_rows.get(_bytes(sql))
        if gate is None or gate.holder in {None, connection}:
            connection.reply(self._lock(connection, sql))
        else:
            gate.queue.append((connection, sql))
            self.world.at(self.world.now + seconds, self.when_running, self._give_up, connection, gate, sql)

    def _give_up(self, connection: SimConnection, gate: GateRow, sql: str) -> None:
        if (connection, sql) in gate.queue:
            gate.queue.remove((connection, sql))
            connection.reply(TransactionConflict("lock wait timeout"))

    def _lock(self, connection: SimConnection, sql: str) -> Answer:
        gate = self.gate_rows.get(_bytes(sql))
        if gate is None:
            return Answer()
        gate.holder = connection
        if (nonce := _NONCE.search(sql)) is not None:
            gate.nonce = nonce[1]
        return Answer(rows=[("id",)])

    def _register(self, connection: SimConnection, sql: str) -> None:
        if (row := _REGISTERED.search(sql)) is not None:
            self.registered[connection] = bytes.fromhex(row[1]), row[2], row[3]

    def _roll_back(self, connection: SimConnection) -> None:
        self.registered.pop(connection, None)
        for gate in self.gate_rows.values():
            if gate.holder is connection:
                gate.holder = gate.nonce = None
                if gate.queue:
                    waiter, sql = gate.queue.pop(0)
                    waiter.reply(self._lock(waiter, sql))

    # ── statements of any session ──────────────────────────────────────────────────────────────────────────────────

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        value = values[0]
        key = value if isinstance(value, bytes) else str(value).encode()
        match statement.name:
            case "gate":
                return Answer(rows=[("1",)] if key in self.gate_rows else [])
            case "build_gate":
                self.gate_rows.setdefault(key, GateRow())
                return Answer()
            case "orphan_gates":
                return Answer(
                    rows=[(gate.hex(),) for gate in self.gate_rows if gate >= key and gate not in self.tables.locks]
                )
            case "in_gate":
                return Answer(rows=[(self.gate_rows[key].nonce,)] if key in self.gate_rows else [])
            case "same_client":
                clients = {client for gate, nonce, client in self.registered.values() if (gate, nonce) == values[:2]}
                rows = [row for row in self.registered.values() if row[0] == key and row[2] in clients - {values[2]}]
                return Answer(rows=[(nonce,) for _, nonce, _ in rows if nonce != values[1]])
            case "kill":
                if key not in self.named_locks:
                    raise BackendUnavailable(backend="sim", problem="unknown thread id")
                self.terminate([self.named_locks[key]])
                return Answer()
            case _:
                return super().run(statement, values)

    def reap(self) -> object:
        for key, gate in list(self.gate_rows.items()):
            if key not in self.tables.locks and gate.holder is None:
                del self.gate_rows[key]
        return super().reap()

    def state(self) -> object:
        gate_rows = [
            (key, gate.holder and gate.holder.number, gate.nonce, [connection.number for connection, _ in gate.queue])
            for key, gate in self.gate_rows.items()
        ]
        named_locks = [(name, connection.number) for name, connection in self.named_locks.items()]
        registered = [(connection.number, row) for connection, row in self.registered.items()]
        return super().state(), gate_rows, named_locks, list(self.sessions), registered

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def clear_queues(self) -> None:
        for gate in self.gate_rows.values():
            gate.queue.clear()

    def lose_data(self) -> None:
        super().lose_data()
        self.gate_rows.clear()

    def process_died(self, process: Process) -> None:
        for connection in self.sessions_of(process):
            self.world.at(self.world.now + connection.port.link.delay(), connection.server_sees_close)


def _bytes(sql: str) -> bytes:
    """The id of a gate row, or the name of a named lock, in this statement."""
    (value, *_) = _HEX.findall(sql)
    return bytes.fromhex(value)
