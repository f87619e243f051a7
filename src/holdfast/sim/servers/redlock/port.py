"""A RedlockPort: each node over a link of its own, all of them asked at once.

A client meets a node before it asks it anything: then the node says who it is and since when. The connection ends with
the node's process, and with every request that gets no answer; the next request meets the node again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.port import Channel
from holdfast.backends.redlock.port import ServerRun
from holdfast.errors import HoldfastError, NameConflict, OutcomeUnknown
from holdfast.sim.network import Link, _Request
from holdfast.sim.servers.redis.commands import Refused
from holdfast.sim.servers.redis.port import PREFIX, ScriptFailed, SimPort
from holdfast.sim.world import Task, Trap

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Reply
    from holdfast.backends.redis.protocol.keys import Keys
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.servers.redlock.node import Node


class Branch(Link):
    """From a process to one node. What goes wrong on its way is up to the whole link."""

    server: Node

    def __init__(self, trunk: Link, node: Node) -> None:
        super().__init__(trunk.process, node, trunk.faults)
        self._trunk = trunk

    def happens(self, kind: str, probability: float) -> bool:
        return self._trunk.happens(kind, probability)


class SimNodes(SimPort):
    """The way of one client to all nodes. It hears hints from one of them, and from the next after trouble with it."""

    def __init__(self, branches: Sequence[Branch], runtime: SimRuntime, number: int, *, forgets: bool) -> None:
        super().__init__(branches[0].server, branches[0], runtime, number)
        self.nodes = tuple(branch.server.name for branch in branches)
        self.branches = branches
        self._forgets = forgets
        self._server_runs: dict[int, ServerRun] = {}
        self._met: dict[int, int] = {}  # node -> which of its processes we are connected to

    def channel(self, keys: Keys) -> Channel:
        return Channel("PUBLISH", f"{PREFIX}wake-all:{self._listener}")

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        if not calls:
            return []
        answers: list[Reply | HoldfastError] = await _Asking(self, calls, deadline)
        return answers

    def server_run(self, number: int) -> ServerRun | None:
        return self._server_runs.get(number)

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        return 0  # only shown to people

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        machine = self.branches[number].server.machine
        reply: Any = await self.branches[number].request(
            lambda: machine.command(["SCAN", 0, "MATCH", pattern]), deadline
        )
        return b"0", [key.decode() for key in reply[1]]

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work, "attendance")

    def connection_lost(self, connection: int) -> None:
        is_news = connection == self.connection
        super().connection_lost(connection)
        if is_news:
            following = (self.branches.index(self.link) + 1) % len(self.branches)
            self._server = self.branches[following].server
            self.move(self._server, self.branches[following])

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def is_met(self, number: int) -> bool:
        return number in self._met

    def hello(self, number: int) -> tuple[int, str, int]:
        """At the node."""
        node = self.branches[number].server
        return node.starts, node.run_id, node.uptime

    def meet(self, number: int, said: tuple[int, str, int]) -> None:
        self._met[number], run, uptime = said
        self._server_runs[number] = ServerRun(run, self._runtime.now() - uptime, may_forget=self._forgets)

    def hang_up(self, number: int) -> None:
        self._met.pop(number, None)

    def run_at(self, number: int, calls: Sequence[Call]) -> list[Reply | HoldfastError]:
        """At the node: unless it is another process by now, which has never heard of this connection."""
        node = self.branches[number].server
        if self._met.get(number) != node.starts:
            raise OutcomeUnknown(backend=node.name, problem="connection reset")
        return [_answer(node, call) for call in calls]


def _answer(node: Node, call: Call) -> Reply | HoldfastError:
    try:
        return node.run(call)
    except Refused as refused:
        if refused.code == "WRONGTYPE":
            return NameConflict(lock="?", reason=str(refused))
        raise ScriptFailed(str(refused)) from refused


class _Asking(Trap):
    """Several nodes at once; goes on when all have answered, each of them by the deadline at the latest."""

    def __init__(self, port: SimNodes, calls: Sequence[tuple[int, Call]], deadline: float) -> None:
        self._port = port
        self._calls = calls
        self._deadline = deadline

    def begin(self, task: Task, turn: int) -> None:
        self.task, self._turn = task, turn
        self._answers: list[Any] = [None] * len(self._calls)
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
        """By nothing that a client could handle."""
        self.task.resume(self._turn, None, error)

    def answered(self, indices: Sequence[int], answers: Sequence[Any]) -> None:
        for index, answer in zip(indices, answers, strict=True):
            self._answers[index] = answer
        self._open -= 1
        if not self._open:
            self.task.resume(self._turn, self._answers)


class _Leg:
    """One node of those. To a request it looks like the task that waits for the answer."""

    def __init__(self, asking: _Asking, port: SimNodes, number: int, calls: Sequence[Call], indices: list[int]) -> None:
        self._asking = asking
        self._port = port
        self._number = number
        self._calls = calls
        self._indices = indices
        self._turn = 0
        self.process = asking.task.process
        self.is_keeper = asking.task.is_keeper

    def begin(self, deadline: float) -> None:
        self._deadline = deadline
        if self._port.is_met(self._number):
            self._send(lambda: self._port.run_at(self._number, self._calls))
        else:
            self._send(lambda: self._port.hello(self._number))

    def resume(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """For the request: its answer, or that there is none. Only the first counts."""
        self.process.do(self._arrived, turn, value, error)

    def _send(self, step: Callable[[], Any]) -> None:
        request = _Request(self._port.branches[self._number], step, self._deadline)
        request.begin(self, self._turn)  # type: ignore[arg-type]  # all of a task that it needs

    def _arrived(self, turn: int, value: Any, error: BaseException | None) -> None:
        if turn != self._turn:
            return
        self._turn += 1
        if isinstance(error, HoldfastError):
            self._port.hang_up(self._number)
            self._asking.answered(self._indices, [error] * len(self._indices))
        elif error is not None:
            self._asking.fail(error)
        elif isinstance(value, tuple):
            self._port.meet(self._number, value)
            if not self._asking.is_over:
                self.begin(self._deadline)
        else:
            self._asking.answered(self._indices, value)
