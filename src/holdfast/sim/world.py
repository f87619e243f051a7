"""The world: one true clock that jumps from event to event, and tasks that take turns in an order that is drawn.

A task is a coroutine. It runs until it awaits a `Trap`; the trap says what has to happen until it goes on. Between two
traps nothing else runs: every trap is a point where tasks interleave, messages get lost, processes die.
"""

from __future__ import annotations

import contextlib
import heapq
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from holdfast.core.ports import Caller

if TYPE_CHECKING:
    from holdfast.sim.choices import Choices
    from holdfast.sim.process import Process

STEPS_MAX = 200_000
_ORDERS = 4  # things due at the same moment come in one of the orders that this many ranks allow


class Cancelled(BaseException):
    """What a cancelled task gets, where it waits. As asyncio.CancelledError, it is no Exception."""


class Trap:
    """Awaited: hands the task over to the world. `begin` arranges for `task.resume(turn, …)` to be called."""

    __slots__ = ()

    def begin(self, task: Task, turn: int) -> None:
        raise NotImplementedError  # every kind of trap has its own

    def __await__(self) -> Generator[Trap, Any, Any]:
        return (yield self)


class World:
    """Time and tasks. Knows no locks."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 0.0
        self.steps = 0
        self.current: Task | None = None
        self._due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.held_mutexes = 0

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have it done at this moment; what is due at the same moment comes in an order that is drawn."""
        self._count += 1
        heapq.heappush(self._due, (when, 0, self._count, action, arguments))

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        """Have it done now, before or after whatever else is to be done now."""
        self._count += 1
        heapq.heappush(self._due, (self.now, self.choices.below(_ORDERS), self._count, action, arguments))

    def run(self, until: float) -> None:
        """Do what is due, in order, up to this moment."""
        due = self._due
        while due and due[0][0] <= until:
            when, _, _, action, arguments = heapq.heappop(due)
            self.now = max(self.now, when)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise RuntimeError(f"no end after {STEPS_MAX} steps: something here goes round in circles")
            action(*arguments)
        self.now = max(self.now, until)


class Task:
    """A coroutine that belongs to a process: it stands still with it, and dies with it."""

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
        self.caller = Caller()
        self.call = 0  # the attempt that it is about, for the history
        self.is_done = False
        self.suspensions = 0
        self.cancel_at: int | None = None  # cancel it at its so-manieth suspension,
        self.cancel_after = 0.0  # that many seconds into it
        self.was_cancelled = False
        self._coroutine = coroutine
        self._turn = 0
        process.world.soon(self.resume, 0)

    def resume(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Go on after the trap of this turn; a turn that is over is nobody's business any more."""
        if self.is_over(turn):
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
                raise AssertionError(f"{self.name} waits with a mutex held")
            self.suspensions += 1
            if self.suspensions == self.cancel_at:
                self.cancel(self.cancel_after)
            trap.begin(self, self._turn)
        finally:
            world.current = None

    @property
    def is_keeper(self) -> bool:
        """It belongs to a client's keeper."""
        return self.name.endswith(("/keeper", "/keeper-io"))

    def is_over(self, turn: int) -> bool:
        """Nothing that comes for this turn is heard any more."""
        return turn != self._turn or self.is_done

    def cancel(self, after: float = 0.0) -> None:
        """Have Cancelled raised where it waits, if it still does then."""
        world = self.process.world
        if after:
            world.at(world.now + after, self.resume, self._turn, None, Cancelled())
        else:
            world.soon(self.resume, self._turn, None, Cancelled())

    def bury(self) -> None:
        """After the end of the world: its clean-up code may run, and finds nothing that it could change."""
        self.is_done = True
        while inspect.getcoroutinestate(self._coroutine) != inspect.CORO_CLOSED:
            with contextlib.suppress(RuntimeError):  # the clean-up waits for something: on to the next
                self._coroutine.close()
