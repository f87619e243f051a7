"""A RedlockPort: each node has its own link, and all get their requests at the same time.

The first request on a connection is a handshake, in which the node reports its run and uptime. A connection ends with
the node's process and after every request without a reply; the next request starts with a handshake again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.port import Channel
from holdfast.backends.redlock.port import ServerRun
from holdfast.errors import HoldfastError, NameConflict, OutcomeUnknown
from holdfast_lab.sim.network import Link, _Request
from holdfast_lab.sim.servers.redis.commands import Refused
from holdfast_lab.sim.servers.redis.port import PREFIX, ScriptFailed, SimPort
from holdfast_lab.sim.world import Task, Trap

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Reply
    from holdfast.backends.redis.protocol.keys import LockKeys
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.redlock.node import Node


class Branch(Link):
    """The link from a process to one node. Its faults are those of the whole link."""

    server: Node

    def __init__(self, trunk: Link, node: Node) -> None:
        super().__init__(trunk.process, node, trunk.faults)
        self._trunk = trunk

    def happens(self, kind: str, probability: float) -> bool:
        return self._trunk.happens(kind, probability)


class SimNodes(SimPort):
    """The port of one client. It is subscribed on one node, and after an error on the next one."""

    def __init__(self, branches: Sequence[Branch], runtime: SimRuntime, number: int, *, forgets: bool) -> None:
        super().__init__(branches[0].server, branches[0], runtime, number)
        self.nodes = tuple(branch.server.name for branch in branches)
        self.branches = branches
        self._forgets = forgets
        self._server_runs: dict[int, ServerRun] = {}
        self._connected: dict[int, int] = {}  # node -> the run of its process that is connected

    def channel(self, keys: LockKeys) -> Channel:
        return Channel("PUBLISH", f"{PREFIX}wake-all:{self._listener}")

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        if not calls:
            return []
        replies: list[Reply | HoldfastError] = await _Exchange(self, calls, deadline)
        return replies

    def server_run(self, number: int) -> ServerRun | None:
        return self._server_runs.get(number)

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        return 0  # only for display

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        machine = self.branches[number].server.machine
        reply: Any = await self.branches[number].request(
            lambda: machine.command(["SCAN", 0, "MATCH", pattern]), deadline
        )
        return b"0", [key.decode() for key in reply[1]]

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work, "node-health")

    def connection_lost(self, connection: int) -> None:
        is_current = connection == self.connection
        super().connection_lost(connection)
        if is_current:
            following = (self.branches.index(self.link) + 1) % len(self.branches)
            self._server = self.branches[following].server
            self.move(self._server, self.branches[following])

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def is_connected(self, number: int) -> bool:
        return number in self._connected

    def handshake(self, number: int) -> tuple[int, str, int]:
        """The handshake, executed at the node."""
        node = self.branches[number].server
        return node.starts, node.run_id, node.uptime

    def connected(self, number: int, reported: tuple[int, str, int]) -> None:
        self._connected[number], run, uptime = reported
        self._server_runs[number] = ServerRun(run, self._runtime.now() - uptime, may_forget=self._forgets)

    def disconnect(self, number: int) -> None:
        self._connected.pop(number, None)

    def run_at(self, number: int, calls: Sequence[Call]) -> list[Reply | HoldfastError]:
        """Executed at the node. A restarted process does not know this connection."""
        node = self.branches[number].server
        if self._connected.get(number) != node.starts:
            raise OutcomeUnknown(backend=node.name, problem="connection reset")
        return [_reply_of(node, call) for call in calls]


def _reply_of(node: Node, call: Call) -> Reply | HoldfastError:
    try:
        return node.run(call)
    except Refused as refused:
        if refused.code == "WRONGTYPE":
            return NameConflict(lock="?", reason=str(refused))
        raise ScriptFailed(str(refused)) from refused


class _Exchange(Trap):
    """Requests to several nodes. It continues when each node has replied or its deadline has passed."""

    def __init__(self, port: SimNodes, calls: Sequence[tuple[int, Call]], deadline: float) -> None:
        self._port = port
        self._calls = calls
        self._deadline = deadline

    def begin(self, task: Task, turn: int) -> None:
        self.task, self._turn = task, turn
        self._replies: list[Any] = [None] * len(self._calls)
        indices: dict[int, list[int]] = {}
        for index, (number, _) in enumerate(self._calls):
            indices.setdefault(number, []).append(index)
        self._open = len(indices)
        for number, mine in indices.items():
            _Leg(self, self._port, number, [self._calls[index][1] for index in mine], mine).begin(
                task.process.true_time(self._deadline)
            )

    @property
    def is_over(self) -> bool:
        return self.task.has_ended(self._turn)

    def fail(self, error: BaseException) -> None:
        """An error that no client can handle."""
        self.task.resume(self._turn, None, error)

    def answered(self, indices: Sequence[int], replies: Sequence[Any]) -> None:
        for index, answer in zip(indices, replies, strict=True):
            self._replies[index] = answer
        self._open -= 1
        if not self._open:
            self.task.resume(self._turn, self._replies)


class _Leg:
    """The part for one node. It has the interface of a task, because a request resumes the task that waits for it."""

    def __init__(
        self, exchange: _Exchange, port: SimNodes, number: int, calls: Sequence[Call], indices: list[int]
    ) -> None:
        self._exchange = exchange
        self._port = port
        self._number = number
        self._calls = calls
        self._indices = indices
        self._turn = 0
        self.process = exchange.task.process
        self.is_keeper = exchange.task.is_keeper

    def begin(self, deadline: float) -> None:
        self._deadline = deadline
        if self._port.is_connected(self._number):
            self._send(lambda: self._port.run_at(self._number, self._calls))
        else:
            self._send(lambda: self._port.handshake(self._number))

    def resume(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Called by the request with its reply or error. Only the first call counts."""
        self.process.do(self._arrived, turn, value, error)

    def _send(self, step: Callable[[], Any]) -> None:
        request = _Request(self._port.branches[self._number], step, self._deadline)
        request.begin(self, self._turn)  # type: ignore[arg-type]  # it has all attributes of a task that are used

    def _arrived(self, turn: int, value: Any, error: BaseException | None) -> None:
        if turn != self._turn:
            return
        self._turn += 1
        if isinstance(error, HoldfastError):
            self._port.disconnect(self._number)
            self._exchange.answered(self._indices, [error] * len(self._indices))
        elif error is not None:
            self._exchange.fail(error)
        elif isinstance(value, tuple):
            self._port.connected(self._number, value)
            if not self._exchange.is_over:
                self.begin(self._deadline)
        else:
            self._exchange.answered(self._indices, value)
