"""The network between a process and its server: delay, loss, duplication, reordering, one-way cuts, connections.

A request without an answer ends at its deadline with OutcomeUnknown, like a read timeout of a driver. A refused request
ends at once with BackendUnavailable. Nothing here retries: that is the job of the code under test.

If connections can vanish or host name look-ups can stall, requests use the connection pool that ships.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.net.pool import ConnectionPool, Probe
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast_lab.sim.runtime import SimRuntime, Sleep
from holdfast_lab.sim.world import Task, Trap

if TYPE_CHECKING:
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.servers.base import Server

T = TypeVar("T")

CONNECTIONS_MAX = 8
CONNECT_TIMEOUT = 3.0  # seconds


class Connection:
    """One connection of a pool."""

    def __init__(self) -> None:
        self.used_at = 0.0
        self.probe: Probe | None = None
        self.is_open = True
        self.has_vanished = False  # no FIN or RST was received

    def is_dead(self) -> bool:
        return False

    def close(self) -> None:
        self.is_open = False


class Link:
    """The link between one process and the server. The nemesis cuts it."""

    def __init__(self, process: Process, server: Server, faults: Faults) -> None:
        self.branches: list[Link] = []  # if the server has several nodes: one link to each, which requests use
        self.process = process
        self.server = server
        self.faults = faults
        self._last_arrival = 0.0
        self.requests_cut = False
        self.replies_cut = False
        self.lookups_stall = False
        self.pool: ConnectionPool[Connection] | None = None
        if faults.vanish or faults.lookup_stall:
            self.use_pool(ConnectionPool)

    def use_pool(self, pool_type: type[ConnectionPool[Connection]]) -> None:
        """Send all requests over a pool of this type."""
        self.pool = pool_type("sim", self._connect, SimRuntime(self.process, self.server.recorder), CONNECTIONS_MAX)

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        """Run the step on the server, atomically."""
        if self.pool is None:
            answer: T = await _Request(self, step, self.process.true_time(deadline))
            return answer
        return await self.pool.run(lambda connection: self._request_on(connection, step, deadline), deadline)

    async def _request_on(self, connection: Connection, step: Callable[[], T], deadline: float) -> T:
        """The behaviour of the real connections."""
        try:
            if not connection.has_vanished:
                answer: T = await _Request(self, step, self.process.true_time(deadline), connection)
                return answer
            if connection.probe is not None:
                now = self.process.now()
                await self._sleep_until(now + (deadline - now) / 2)
                deadline = await connection.probe(deadline)
            await self._sleep_until(deadline)
            raise OutcomeUnknown(backend="sim", problem="no answer in time")
        except OutcomeUnknown:
            connection.close()
            raise

    async def _connect(self, deadline: float) -> Connection:
        until = min(deadline, self.process.now() + CONNECT_TIMEOUT)
        connected = self.process.world.now + self.delay()
        cannot = self.requests_cut or self.replies_cut or self.lookups_stall or self.server.is_stalled
        if cannot or connected > self.process.true_time(until):
            await self._sleep_until(until)
            raise BackendUnavailable(backend="sim", problem="not connected in time")
        await Sleep(connected)
        return Connection()

    async def _sleep_until(self, moment: float) -> None:
        await Sleep(self.process.wakes_at(moment))

    def vanish(self, burst: int) -> bool:
        """Let all connections vanish, and `burst` more idle ones of a burst of requests; False if there is no pool."""
        if self.pool is None:
            return False
        for _ in range(burst):
            idle = Connection()
            idle.used_at = self.process.now()
            self.pool._counted.add(idle)
            self.pool.put(idle)
        for connection in self.pool._counted:
            if isinstance(connection, Connection):
                connection.has_vanished = True
        return True

    async def request_in_session(self, step: Callable[[], T], deadline: float, in_flight: list[SessionRequest]) -> T:
        """Like `request_in_this_run`, on a connection of its own: `in_flight` has the request, which can fail early."""
        request = SessionRequest(self, self._in_this_run(step), self.process.true_time(deadline))
        in_flight.append(request)
        try:
            answer: T = await request
        finally:
            in_flight.remove(request)
        return answer

    async def request_in_this_run(self, step: Callable[[], T], deadline: float) -> T:
        """Like `request`, but a restart of the server while it is in flight ends its connection."""
        return await self.request(self._in_this_run(step), deadline)

    def _in_this_run(self, step: Callable[[], T]) -> Callable[[], T]:
        server, before = self.server, self.server.starts

        def arrived() -> T:
            if server.starts != before:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
            return step()

        return arrived

    def notify(self, action: Callable[..., None], *arguments: Any) -> None:
        """Send a notification from the server, which may be late or lost."""
        if not (self.replies_cut or self.happens("lose_notification", self.faults.lose_notification)):
            world = self.process.world
            world.at(world.now + self.delay(), self.process.do, action, *arguments)

    def arrival(self) -> float:
        """The time at which a request sent now arrives."""
        when = self.process.world.now + self.delay()
        # A connection keeps the order; slow requests use other connections.
        if self.server.keeps_order or not self.faults.slow:
            when = self._last_arrival = max(when, self._last_arrival)
        return when

    def delay(self) -> float:
        faults = self.faults
        slowest = faults.slow_max if self.happens("slow", faults.slow) else faults.delay_max
        return self.process.world.choices.between(faults.delay_min, slowest)

    def happens(self, kind: str, probability: float) -> bool:
        """Whether this fault happens now. Counted."""
        if not self.process.world.choices.chance(probability):
            return False
        self.server.recorder.happened[kind] += 1
        return True


class _Request(Trap):
    """One request and its reply, each with its own faults."""

    __slots__ = ("_connection", "_deadline", "_link", "_step", "_task", "_turn")

    def __init__(
        self, link: Link, step: Callable[[], Any], deadline: float, connection: Connection | None = None
    ) -> None:
        self._link = link
        self._connection = connection
        self._step = step
        self._deadline = deadline

    def begin(self, task: Task, turn: int) -> None:
        self._task, self._turn = task, turn
        link, world = self._link, task.process.world
        faults = link.faults
        if link.happens("refuse", faults.refuse):
            error = BackendUnavailable(backend="sim", problem="connection refused")
            world.at(min(world.now + link.delay(), max(world.now, self._deadline)), task.resume, turn, None, error)
            return
        if task.is_keeper and link.happens("overrun", faults.overrun):
            late = world.choices.between(0.0, faults.overrun_max)
            error = BackendUnavailable(backend="sim", problem="no address for this name")
            world.at(max(world.now, self._deadline) + late, task.resume, turn, None, error)
            return
        unknown = OutcomeUnknown(backend="sim", problem="no answer in time")
        world.at(max(world.now, self._deadline), task.resume, turn, None, unknown)
        if not link.requests_cut and not link.happens("lose_request", faults.lose_request):
            world.at(link.arrival(), self._arrive, True)  # noqa: FBT003  (its answer is awaited)
            if link.happens("duplicate", faults.duplicate):
                later = world.choices.between(faults.delay_min, faults.slow_max)
                world.at(world.now + later, self._arrive, False)  # noqa: FBT003  (its answer is not)

    def _arrive(self, is_first: bool) -> None:  # noqa: FBT001  (called by the world)
        link = self._link
        link.server.when_running(self._execute, is_first)

    def _execute(self, is_first: bool) -> None:  # noqa: FBT001  (called by the server)
        link, task = self._link, self._task
        try:
            value, error = link.server.execute(self._step), None
        except Exception as raised:  # an error is an answer too
            value, error = None, raised
        world = task.process.world
        if self._connection is not None and self._connection.has_vanished:
            return
        if is_first and not link.replies_cut and not link.happens("lose_reply", link.faults.lose_reply):
            world.at(world.now + link.delay(), task.resume, self._turn, value, error)


class SessionRequest(_Request):
    """A request on a connection whose end the client can see before the answer."""

    __slots__ = ()

    def fail(self) -> None:
        """The connection has ended. Ignored if the answer has arrived."""
        error = OutcomeUnknown(backend="sim", problem="connection reset")
        self._link.process.world.soon(self._task.resume, self._turn, None, error)
