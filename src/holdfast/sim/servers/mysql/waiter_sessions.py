"""What method=row needs besides the tables: sessions that lock a row, wait for it, and end at either end.

The gates that ship speak here, in their own SQL, on connections of which the server sees the end when the client has
closed them, and the client some time after the server has: in a network that is cut, once it is whole again.
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
from holdfast.sim.faults import POOLED
from holdfast.sim.servers.mysql.port import SimPort
from holdfast.sim.servers.mysql.server import MysqlServer
from holdfast.sim.servers.subscriptions import NOTICED_MAX

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import PeriodicCheck, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")

AGAIN = 1.0  # seconds between attempts to get something through a network that is cut
_WAIT = re.compile(r"innodb_lock_wait_timeout = (\d+); ")
_HEX = re.compile(r"x'([0-9a-f]*)'")
_NONCE = re.compile(r"SET nonce = '([0-9a-z]+)'")
_REGISTERED = re.compile(r"holdfast_sessions \(id, nonce, client\) VALUES \(x'([0-9a-f]*)', '(\w+)', '(\w+)'\)")
_MARK = b"holdfast:"


class SimConnection:
    """A connection of its own, seen from both ends: `is_over` at the server, `is_open` and `is_dead` at the client."""

    def __init__(self, port: RowPort, number: int) -> None:
        self.number = number
        self.port = port
        self.is_over = False
        self.is_open = True
        self._is_dead = False
        self.used_at = 0.0
        self.probe = None
        self._event = port.runtime.event()
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
            return await self.port.request(lambda: self.port.gates.query(self, sql), deadline)
        except TransactionConflict:
            raise
        except BaseException:
            self.close()
            raise

    async def _wait(self, sql: str, seconds: int, deadline: float, check: PeriodicCheck | None) -> Answer:
        """What may take long: the answer comes by itself."""
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
        """What is lost is sent again by TCP, unless one of the two has gone."""
        gates, link = self.port.gates, self.port.link
        world = link.process.world
        if not self.is_open or link.process.is_dead:
            return
        if link.requests_cut or link.happens("lose_request", link.faults.lose_request):
            world.at(world.now + AGAIN, self._send, sql, seconds)
        else:
            world.at(link.arrival(), gates.when_running, gates.query_long, self, sql, seconds)

    def reply(self, answer: Answer | TransactionConflict) -> None:
        """From the server. Likewise."""
        link = self.port.link
        world = link.process.world
        if self.is_over or link.process.is_dead:
            return
        if link.replies_cut or link.happens("lose_reply", link.faults.lose_reply):
            world.at(world.now + AGAIN, self.reply, answer)
        else:
            world.at(world.now + link.delay(), link.process.do, self._hear, answer)

    def _hear(self, answer: Answer | TransactionConflict) -> None:
        if self.is_open:
            self._answer = answer
            self._event.set()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._event.set()
            world = self.port.link.process.world
            world.at(world.now + self.port.link.delay(), self.hang_up)

    def hang_up(self) -> None:
        """The server sees that the client has closed it."""
        link, gates = self.port.link, self.port.gates
        if link.requests_cut and not link.process.is_dead:
            link.process.world.at(link.process.world.now + AGAIN, self.hang_up)
        else:
            gates.when_running(gates.end_session, self)

    def end_soon(self) -> None:
        """It has ended, and the client sees that some time later."""
        link = self.port.link
        world = link.process.world
        later = AGAIN if link.replies_cut else world.choices.between(0.0, NOTICED_MAX)
        world.at(world.now + later, self.end_soon if link.replies_cut else self._tell)

    def _tell(self) -> None:
        self.port.link.process.do(self._ended)

    def _ended(self) -> None:
        self._is_dead = True
        self._event.set()


class RowPort(SimPort):
    """A port that has connections to give away."""

    def __init__(self, server: RowServer, link: Link, runtime: SimRuntime) -> None:
        super().__init__(server, link)
        self.gates = server
        self.runtime = runtime

    async def open(self, deadline: float) -> SimConnection:
        try:
            return await self.request(lambda: self.gates.new_session(self), deadline)
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend="sim", problem=error.problem) from error


class Gate:
    """A row of holdfast_gates."""

    def __init__(self) -> None:
        self.keeper: SimConnection | None = None
        self.nonce: str | None = None  # which the keeper has written, and not committed
        self.line: list[tuple[SimConnection, str]] = []  # who waits, and what it said


class RowServer(MysqlServer):
    """Locks by `method=row`."""

    guarantees = GUARANTEES["row"]
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    excluded_faults = POOLED | {"duplicate", "lose_notification"}  # each session has its own connection
    kinds = ("lock",)
    sessions_type: Callable[..., Any] = WaiterSessions
    backend: Callable[..., Any] = RowBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.gates: dict[bytes, Gate] = {}
        self.sessions: dict[int, SimConnection] = {}
        self.marks: dict[bytes, SimConnection] = {}
        self.registered: dict[
            SimConnection, tuple[bytes, str, str]
        ] = {}  # rows of holdfast_sessions: gate, nonce, client
        self._sessions = 0

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = RowPort(self, link, runtime)
        url = "sim://mysql"
        gates = type(self).sessions_type(port, runtime, url)
        backend: Backend = type(self).backend(url, port, gates, runtime)
        return backend

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def new_session(self, port: RowPort) -> SimConnection:
        self._sessions += 1
        connection = self.sessions[self._sessions] = SimConnection(port, self._sessions)
        return connection

    def end_session(self, connection: SimConnection) -> None:
        """All that it has locked and waits for is over."""
        if connection.is_over:
            return
        connection.is_over = True
        del self.sessions[connection.number]
        self.marks = {mark: keeper for mark, keeper in self.marks.items() if keeper is not connection}
        for gate in self.gates.values():
            gate.line = [(waiting, sql) for waiting, sql in gate.line if waiting is not connection]
        self._roll_back(connection)

    def query(self, connection: SimConnection, sql: str) -> Answer:
        """On a session of its own."""
        if connection.is_over:
            raise OutcomeUnknown(backend="sim", problem="connection reset")
        if "DELETE FROM holdfast_gates" in sql:
            keys = {bytes.fromhex(value) for value in _HEX.findall(sql)}
            if any(self.gates[key].keeper is not None for key in keys if key in self.gates):
                raise TransactionConflict("NOWAIT")
            self.gates = {key: gate for key, gate in self.gates.items() if key not in keys}
            return Answer()
        if "FOR UPDATE NOWAIT" in sql:
            self._register(connection, sql)
            key = _bytes(sql)
            if key in self.gates and self.gates[key].keeper not in {None, connection}:
                raise TransactionConflict("NOWAIT")
            return self._lock(connection, sql)
        if sql.startswith("SELECT GET_LOCK"):
            keeper = self.marks.setdefault(_bytes(sql), connection)
            return Answer(rows=[("1" if keeper is connection else "0",)])
        if sql.startswith("ROLLBACK"):
            self._roll_back(connection)
            if "RELEASE_LOCK" in sql and self.marks.get(_bytes(sql)) is connection:
                del self.marks[_bytes(sql)]
            return Answer()
        if sql == "DO 0" or sql.startswith("SET SESSION wait_timeout"):
            return Answer()
        raise AssertionError(f"nobody knows what to answer to {sql}")

    def query_long(self, connection: SimConnection, sql: str, seconds: int) -> None:
        """Lock a gate, within that many seconds."""
        if connection.is_over:
            connection.end_soon()
            return
        self._register(connection, sql)
        gate = self.gates.get(_bytes(sql))
        if gate is None or gate.keeper in {None, connection}:
            connection.reply(self._lock(connection, sql))
        else:
            gate.line.append((connection, sql))
            self.world.at(self.world.now + seconds, self.when_running, self._give_up, connection, gate, sql)

    def _give_up(self, connection: SimConnection, gate: Gate, sql: str) -> None:
        if (connection, sql) in gate.line:
            gate.line.remove((connection, sql))
            connection.reply(TransactionConflict("lock wait timeout"))

    def _lock(self, connection: SimConnection, sql: str) -> Answer:
        gate = self.gates.get(_bytes(sql))
        if gate is None:
            return Answer()
        gate.keeper = connection
        if (nonce := _NONCE.search(sql)) is not None:
            gate.nonce = nonce[1]
        return Answer(rows=[("id",)])

    def _register(self, connection: SimConnection, sql: str) -> None:
        if (row := _REGISTERED.search(sql)) is not None:
            self.registered[connection] = bytes.fromhex(row[1]), row[2], row[3]

    def _roll_back(self, connection: SimConnection) -> None:
        self.registered.pop(connection, None)
        for gate in self.gates.values():
            if gate.keeper is connection:
                gate.keeper = gate.nonce = None
                if gate.line:
                    following, sql = gate.line.pop(0)
                    following.reply(self._lock(following, sql))

    # ── what anybody asks ────────────────────────────────────────────────────────────────────────────────────────

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        value = values[0]
        key = value if isinstance(value, bytes) else str(value).encode()
        match statement.name:
            case "gate":
                return Answer(rows=[("1",)] if key in self.gates else [])
            case "build_gate":
                self.gates.setdefault(key, Gate())
                return Answer()
            case "orphan_gates":
                return Answer(rows=[(one.hex(),) for one in self.gates if one >= key and one not in self.tables.locks])
            case "in_gate":
                return Answer(rows=[(self.gates[key].nonce,)] if key in self.gates else [])
            case "same_client":
                clients = {client for gate, nonce, client in self.registered.values() if (gate, nonce) == values[:2]}
                rows = [row for row in self.registered.values() if row[0] == key and row[2] in clients - {values[2]}]
                return Answer(rows=[(nonce,) for _, nonce, _ in rows if nonce != values[1]])
            case "kill":
                if key not in self.marks:
                    raise BackendUnavailable(backend="sim", problem="unknown thread id")
                self._end([self.marks[key]])
                return Answer()
            case _:
                return super().run(statement, values)

    def reap(self) -> object:
        for key, gate in list(self.gates.items()):
            if key not in self.tables.locks and gate.keeper is None:
                del self.gates[key]
        return super().reap()

    def state(self) -> object:
        gates = [
            (key, gate.keeper and gate.keeper.number, gate.nonce, [connection.number for connection, _ in gate.line])
            for key, gate in self.gates.items()
        ]
        marks = [(mark, connection.number) for mark, connection in self.marks.items()]
        registered = [(connection.number, row) for connection, row in self.registered.items()]
        return super().state(), gates, marks, list(self.sessions), registered

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        super().restart()
        for gate in self.gates.values():
            gate.line.clear()
        self._end([*self.sessions.values()])

    def lose_data(self) -> None:
        super().lose_data()
        self.gates.clear()

    def drop(self, process: Process) -> bool:
        return self._end(
            [connection for connection in self.sessions.values() if connection.port.link.process is process]
        )

    def process_died(self, process: Process) -> None:
        for connection in self.sessions.values():
            if connection.port.link.process is process:
                self.world.at(self.world.now + connection.port.link.delay(), connection.hang_up)

    def _end(self, connections: Sequence[SimConnection]) -> bool:
        for connection in connections:
            self.end_session(connection)
            connection.end_soon()
        return bool(connections)


def _bytes(sql: str) -> bytes:
    """The value that is a gate, or a mark."""
    (value, *_) = _HEX.findall(sql)
    return bytes.fromhex(value)
