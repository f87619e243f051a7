"""The third runtime, beside threads and asyncio: the clock of a simulated process, and waiting in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.core.ports import Caller, IdleCallbacks
from holdfast.errors import ThreadStartError
from holdfast_lab.sim.world import Task, Trap

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder


class Sleep(Trap):
    """Wait until a true time."""

    __slots__ = ("_when",)

    def __init__(self, when: float) -> None:
        self._when = when

    def begin(self, task: Task, turn: int) -> None:
        world = task.process.world
        world.at(max(world.now, self._when), task.resume, turn)


class SimEvent:
    """An event in virtual time."""

    __slots__ = ("_is_set", "_process", "_waiters")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waiters: list[tuple[Task, int]] = []

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for task, turn in waiters:
            self._process.world.soon(task.resume, turn, True)  # noqa: FBT003  (the result of wait)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, until: float | None) -> bool:
        if self._is_set:
            return True
        woken: bool = await _Waiting(self, None if until is None else self._process.wakes_at(until))
        return woken

    def add(self, task: Task, turn: int) -> None:
        self._waiters.append((task, turn))


class _Waiting(Trap):
    __slots__ = ("_event", "_until")

    def __init__(self, event: SimEvent, until: float | None) -> None:
        self._event = event
        self._until = until

    def begin(self, task: Task, turn: int) -> None:
        self._event.add(task, turn)
        if self._until is not None:
            world = task.process.world
            world.at(max(world.now, self._until), task.resume, turn, False)  # noqa: FBT003  (the result of wait)


class SimMutex:
    """Detects a task that waits while it holds the mutex or acquires it twice. Nothing runs between two traps."""

    __slots__ = ("_is_held", "_process")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_held = False

    def __enter__(self) -> None:
        if self._is_held:
            raise AssertionError("a mutex is acquired by its holder: threads would deadlock here")
        self._is_held = True
        self._process.world.held_mutexes += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_held = False
        self._process.world.held_mutexes -= 1


class SimRuntime(IdleCallbacks):
    """The runtime of an engine in a simulated process."""

    spare_nonces: ClassVar[list[str]] = []  # none: each nonce is recorded with the call that uses it

    def __init__(self, process: Process, recorder: Recorder) -> None:
        super().__init__()
        self._process = process
        self._world = process.world
        self.recorder = recorder
        self.clock = process.now  # replaced by the server's clock while a server model runs a step of a protocol
        self.wall_step = 0.0  # seconds by which the wall clock was set
        self.link: Link | None = None  # this process's link, for its faults
        self._notices: deque[Callable[[], object]] = deque()  # calls of subscribers that wait for a slow one

    def now(self) -> float:
        return self.clock()

    def wall(self) -> float:
        return 1_700_000_000.0 + self.clock() + self.wall_step

    def nonce(self) -> str:
        task = self._world.current
        return self.recorder.new_nonce(self._process.name, 0 if task is None else task.call)

    def jitter(self) -> float:
        return self._world.choices.between(0.0, 1.0)

    def caller(self) -> Caller:
        return self.task.caller

    def has_ended(self, caller: Caller | None) -> bool:
        return caller is None

    def agent(self) -> str:
        return self.task.name

    def process_info(self) -> str:
        return f'{{"host": "{self._process.name}", "pid": 1, "program": "sim"}}'

    def process_id(self) -> str:
        return self._process.name  # a new process may take the name, but the numbers of callers differ in a world

    def event(self) -> SimEvent:
        return SimEvent(self._process)

    def mutex(self) -> SimMutex:
        return SimMutex(self._process)

    async def sleep(self, seconds: float) -> None:
        await Sleep(self._process.wakes_at(self._process.now() + seconds))

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        if self._process.is_dead:
            return
        if name.startswith("keeper") and self.link is not None and self.link.happens("no_thread", self._no_thread):
            raise ThreadStartError(thread=name, problem="can't start new thread")
        self._process.start(work(), name)

    async def join(self) -> None:
        background = [task for task in self._process.tasks if task.is_keeper]
        while not all(task.is_done for task in background):
            await self.sleep(0.01)

    def call(self, function: Callable[[], object]) -> None:
        self._world.soon(self._process.do, function)

    def notify(self, function: Callable[[], object], *, here: bool) -> None:
        world = self._world
        if not self._notices:
            if here or self.link is None or not self.link.happens("slow_subscriber", self.link.faults.slow_subscriber):
                function()
                return
            returns_at = world.now + world.choices.between(0.0, self.link.faults.slow_subscriber_max)
            world.at(returns_at, self._process.do, self._notify_all)
        self._notices.append(function)

    def _notify_all(self) -> None:
        while self._notices:
            self._notices.popleft()()

    def run_in_loop(self, function: Callable[[], object]) -> bool:
        return False  # there are no threads

    @property
    def _no_thread(self) -> float:
        return 0.0 if self.link is None else self.link.faults.no_thread

    @property
    def task(self) -> Task:
        """The current task."""
        task = self._world.current
        if task is None:
            raise AssertionError("only tasks use locks")
        return task
