"""The world: one true clock that jumps from event to event, and tasks that run one at a time in a random order.

A task is a coroutine. It runs until it awaits a `Trap`, which arranges when the task resumes. Nothing else runs between
two traps: tasks interleave, messages get lost and processes die only at traps.
"""

from __future__ import annotations

import contextlib
import heapq
import inspect
import itertools
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from holdfast.core.ports import Caller

if TYPE_CHECKING:
    from holdfast_lab.sim.choices import Choices
    from holdfast_lab.sim.process import Process

STEPS_MAX = 200_000
_ORDERS = 4  # each event due now gets one of this many random ranks


class Cancelled(BaseException):
    """Raised in a cancelled task where it waits. Like asyncio.CancelledError, it is not an Exception."""


class Trap:
    """An awaitable that suspends the task. `begin` arranges a call of `task.resume(turn, …)`."""

    __slots__ = ()

    def begin(self, task: Task, turn: int) -> None:
        raise NotImplementedError  # each subclass has its own

    def __await__(self) -> Generator[Trap, Any, Any]:
        return (yield self)


class World:
    """Time and tasks; independent of locks."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 0.0
        self.steps = 0
        self.current: Task | None = None
        self._due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.caller_numbers = itertools.count(1)
        self.held_mutexes = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action at this time; actions at the same time run in the order in which they were added."""
        self._count += 1
        heapq.heappush(self._due, (when, 0, self._count, action, arguments))

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call the action at the current time, in a random order with others that are due now."""
        self._count += 1
        heapq.heappush(self._due, (self.now, self.choices.below(_ORDERS), self._count, action, arguments))

    def run(self, until: float) -> None:
        """Run all actions up to this time, in order."""
        due = self._due
        while due and due[0][0] <= until:
            when, _, _, action, arguments = heapq.heappop(due)
            self.now = max(self.now, when)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise RuntimeError(f"not finished after {STEPS_MAX} steps: the simulation may be in an endless loop")
            action(*arguments)
        self.now = max(self.now, until)


class Task:
    """A coroutine of a process: it is paused and dies with the process."""

    __slots__ = (
        "_coroutine",
        "_turn",
        "call",
        "caller",
        "cancel_after",
        "cancel_at",
        "is_done",
        "name",
        "process",
        "suspensions",
        "was_cancelled",
    )

    def __init__(self, process: Process, coroutine: Coroutine[Trap, Any, Any], name: str) -> None:
        self.process = process
        self.name = name
        self.caller = Caller(next(process.world.caller_numbers))
        self.call = 0  # its current attempt in the history
        self.is_done = False
        self.suspensions = 0
        self.cancel_at: int | None = None  # cancel it at its nth suspension,
        self.cancel_after = 0.0  # this many seconds after it began
        self.was_cancelled = False
        self._coroutine = coroutine
        self._turn = 0
        process.world.soon(self.resume, 0)

    def resume(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Continue after the trap of this turn; ignored if that turn has ended."""
        if self.has_ended(turn):
            return
        process = self.process
        if process.is_dead:
            return
        if process.is_paused:
            process.backlog.append((self.resume, (turn, value, error)))
            return
        world = process.world
        self._turn += 1
        if isinstance(error, Cancelled):
            self.was_cancelled = True
        world.current = self
        try:
            trap = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
        except StopIteration:
            self.is_done = True
        except Cancelled:
            self.is_done = True
        else:
            if world.held_mutexes:
                raise AssertionError(f"{self.name} waits while it holds a mutex")
            self.suspensions += 1
            if self.suspensions == self.cancel_at:
                self.cancel(self.cancel_after)
            trap.begin(self, self._turn)
        finally:
            world.current = None

    @property
    def is_keeper(self) -> bool:
        """Whether this is a task of a client's keeper."""
        return self.name.endswith(("/keeper", "/keeper-io"))

    def has_ended(self, turn: int) -> bool:
        """Whether this turn has ended, so that events for it are ignored."""
        return turn != self._turn or self.is_done

    def cancel(self, after: float = 0.0) -> None:
        """Raise Cancelled where the task waits, if it still waits then."""
        world = self.process.world
        if after:
            world.at(world.now + after, self.resume, self._turn, None, Cancelled())
        else:
            world.soon(self.resume, self._turn, None, Cancelled())

    def close(self) -> None:
        """Close the coroutine after the end of the world; its clean-up code may run but changes nothing."""
        self.is_done = True
        while inspect.getcoroutinestate(self._coroutine) != inspect.CORO_CLOSED:
            with contextlib.suppress(RuntimeError):  # the clean-up code awaited something: close again
                self._coroutine.close()
