"""Processes, which can be paused or crash and have a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast_lab.sim.world import Task, Trap, World

ALARM_DELAY = 1e-6  # far more than the error of floating-point numbers


class Process:
    """One run of a program. After a crash, a new process may take its name."""

    def __init__(self, world: World, name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.is_paused = False
        self.is_dead = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.tasks: list[Task] = []
        self.offset = offset
        self._rate = rate

    def now(self) -> float:
        """Its monotonic clock: runs during pauses, and may be fast or slow."""
        return self.world.now * self._rate + self.offset

    def true_time(self, moment: float) -> float:
        """The true time at which its clock shows this time."""
        return (moment - self.offset) / self._rate

    def wakes_at(self, moment: float) -> float:
        """The true time of a timer for this time, slightly later, so that rounding does not fire it early."""
        return self.true_time(moment) + ALARM_DELAY

    def start(self, coroutine: Coroutine[Trap, Any, Any], name: str) -> Task:
        task = Task(self, coroutine, f"{self.name}/{name}")
        self.tasks.append(task)
        return task

    def do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call an action from outside the process: now, after a pause, or never if it is dead."""
        if self.is_paused:
            self.backlog.append((action, arguments))
        elif not self.is_dead:
            action(*arguments)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        backlog, self.backlog = self.backlog, []
        for action, arguments in backlog:
            self.world.soon(self.do, action, *arguments)

    def crash(self) -> None:
        """Stop all code of the process at once, clean-up included."""
        self.is_dead = True
        self.is_paused = False
        self.backlog.clear()
