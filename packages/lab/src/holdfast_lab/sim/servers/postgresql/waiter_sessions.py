"""The waiter sessions of method=advisory: sessions that hold or wait for advisory locks, and end at either end.

The shipped WaiterSessions run here, on simulated connections. A session ends when the server goes down, when a client
terminates it, or when the server notices that its client has ended. The client notices the end some time later; or
never, if the network is cut at that moment, because no data arrives on that connection any more. A lost message ends
the connection too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.postgresql.io.waiter_sessions import WaiterSessions
from holdfast.backends.postgresql.protocol import advisory
from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast_lab.sim.servers.database import RETRY, SessionDatabase, WaiterConnection
from holdfast_lab.sim.servers.postgresql.port import SimPort
from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer
from holdfast_lab.sim.servers.subscriptions import NOTICED_MAX

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value, WaiterSession
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World


class SimConnection(WaiterConnection):
    """The connection of one ticket."""

    port: AdvisoryPort

    def __init__(self, port: AdvisoryPort, number: int) -> None:
        super().__init__(port, number)
        self.is_waiting = False
        self.is_answered = False  # its last request for an advisory lock

    @property
    def pid(self) -> int:
        return self.number

    def is_dead(self) -> bool:
        return not self.is_open

    async def query(self, sql: str, deadline: float) -> list[Row]:
        """The settings of a new session."""
        del sql
        return await self.exchange(lambda: self.port.server.ping(self), deadline)

    async def exchange(self, step: Callable[[], list[Row]], deadline: float) -> list[Row]:
        if not self.is_open:
            raise BackendUnavailable(backend="sim", problem="connection closed")
        try:
            return await self.request(step, deadline)
        except BaseException:
            self.close()
            raise

    async def query_long(self, sql: str, until: float) -> bool:
        if not self.is_open:
            raise OutcomeUnknown(backend="sim", problem="connection closed")
        if not self.is_waiting:
            self.is_waiting = True
            self._send(int(sql.rpartition("(")[2].rstrip(")")))
        try:
            is_answered: bool = await self._event.wait(until)
        except BaseException:
            self.close()
            raise
        if not self.is_open:
            raise OutcomeUnknown(backend="sim", problem="connection closed")
        if is_answered:
            self.is_waiting = False
        return is_answered

    def _reply_arrived(self) -> None:
        """The answer has arrived: the session has the advisory lock."""
        self.is_answered = True
        self._event.set()

    def end_soon(self) -> None:
        """The client notices the end of the session some time later; never, if the network is cut now."""
        world, process = self.port.link.process.world, self.port.link.process
        if self.port.link.replies_cut:
            return
        world.at(world.now + world.choices.between(0.0, NOTICED_MAX), process.do, self._ended)

    def _ended(self) -> None:
        self.fail_requests()
        self.close()

    def _send(self, key: int) -> None:
        self.is_answered = False
        self._event.clear()
        link = self.port.link
        world = link.process.world
        if link.requests_cut or link.happens("lose_request", link.faults.lose_request):
            self.end_soon()
        else:
            arrived = self.port.server.when_running
            world.at(link.arrival(), arrived, self.port.server.wait_for_lock, self, key)

    def reply(self) -> None:
        """Send the answer from the server."""
        link = self.port.link
        if link.replies_cut or link.happens("lose_reply", link.faults.lose_reply):
            self.end_soon()
        else:
            world = link.process.world
            world.at(world.now + link.delay(), link.process.do, self._reply_arrived)


class AdvisoryPort(SimPort):
    """A port that opens connections for waiter sessions."""

    def __init__(self, server: AdvisoryServer, link: Link, runtime: SimRuntime, number: int) -> None:
        super().__init__(server, link, runtime, number)
        self.server = server
        self.runtime = runtime
        self._sessions = type(server).sessions_type(self)

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        return await self._sessions.open(deadline)

    def return_waiter_session(self, session: WaiterSession) -> None:
        self._sessions.put(session)

    # ── for the waiter sessions ──────────────────────────────────────────────────────────────────────────────────

    async def open(self, deadline: float) -> SimConnection:
        try:
            return await self.request(lambda: self.server.new_session(self), deadline)
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend="sim", problem=error.problem) from error

    async def execute_on(
        self, connection: SimConnection, statement: Statement, values: Sequence[Value], deadline: float
    ) -> list[Row]:
        return await connection.exchange(lambda: self.server.run_on(connection, statement, values), deadline)


class AdvisoryServer(SessionDatabase[SimConnection], PostgresqlServer):
    """A server for `method=advisory`."""

    guarantees = GUARANTEES["advisory"]
    connection_type = SimConnection
    sessions_type: Callable[..., WaiterSessions] = WaiterSessions
    backend: Callable[..., Backend] = AdvisoryBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self._holders: dict[int, SimConnection] = {}  # by key of an advisory lock: its holder
        self._queues: dict[int, list[SimConnection]] = {}

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = AdvisoryPort(self, link, runtime, len(self.subscribers))
        self.subscribers.append(port)
        return type(self).backend("sim://postgresql", port, runtime, schema="public")

    # ── sessions and advisory locks ────────────────────────────────────────────────────────────────────────────────

    def release_locks(self, connection: SimConnection) -> None:
        self._cancel(connection)
        for key in [key for key, holder in self._holders.items() if holder is connection]:
            self._unlock(key)

    def _cancel(self, session: SimConnection) -> None:
        """End its wait for an advisory lock."""
        for queue in self._queues.values():
            if session in queue:
                queue.remove(session)

    def wait_for_lock(self, session: SimConnection, key: int) -> None:
        if session.is_over:
            session.end_soon()
        elif self._try_lock(session, key):
            session.reply()
        else:
            self._queues.setdefault(key, []).append(session)

    def _try_lock(self, session: SimConnection, key: int) -> bool:
        return self._holders.setdefault(key, session) is session

    def _unlock(self, key: int) -> None:
        del self._holders[key]
        if self._queues.get(key):
            waiter = self._queues[key].pop(0)
            self._holders[key] = waiter
            waiter.reply()

    def state(self) -> object:
        holders = [(key, holder.pid) for key, holder in self._holders.items()]
        queues = [(key, [session.pid for session in queue]) for key, queue in self._queues.items()]
        ends = [
            (session.pid, session.is_answered, session.is_waiting, session.is_open)
            for session in self.sessions.values()
        ]
        return super().state(), holders, queues, ends

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────

    def ping(self, session: SimConnection) -> list[Row]:
        """Execute a statement that changes no data."""
        if session.is_over:
            raise OutcomeUnknown(backend="sim", problem="connection reset")
        return []

    def run_on(self, session: SimConnection, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """Execute a statement in a waiter session."""
        self.ping(session)
        self.tables.caller = session.port.channel
        if statement is advisory._RELEASE:
            name, nonce, key = values
            rows = self.tables.fast_release_rows(str(name), str(nonce))
            if rows and self._holders.get(int(key or 0)) is session:
                self._unlock(int(key or 0))
            return rows
        name, nonce, ttl, key, had_lock, stay, agent, info = values
        has_advisory_lock = bool(had_lock) or self._try_lock(session, int(key or 0))
        row = self.tables.pass_(
            str(name), str(nonce), int(ttl or 0), (str(agent), str(info)), has_advisory_lock=has_advisory_lock
        )
        if has_advisory_lock and row[0] != "in" and not (row[0] == "wait" and stay):
            self._unlock(int(key or 0))
            has_advisory_lock = False
        return [(*row, "t" if has_advisory_lock else "f")]

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        if statement is advisory._TERMINATE_HOLDER:
            holder = self._holders.get(int(values[0] or 0))
            if holder is None:
                return []
            self.terminate([holder])
            return [("t",)]
        if statement is advisory._CANCEL:
            if (session := self.sessions.get(int(values[0] or 0))) is not None:
                self._cancel(session)
            return []
        return super().run(port, statement, values)

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def clear_queues(self) -> None:
        self._queues.clear()

    @property
    def recovery_time(self) -> float:
        """Until a waiter on a connection that has silently ended has polled twice."""
        return 5.0

    def process_died(self, process: Process) -> None:
        super().process_died(process)
        for session in self.sessions_of(process):
            self.world.at(self.world.now + RETRY, session.server_sees_close)
