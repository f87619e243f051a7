"""Processes: what can be paused, can crash, and has a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.sim.world import Task, Trap, World

ALARM_DELAY = 1e-6  # far more than floating-point numbers are wrong by


class Process:
    """One run of a program. After a crash, a new one may take its name."""

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
        """Its clock: never goes back, goes on while it is paused, and may be fast or slow."""
        return self.world.now * self._rate + self.offset

    def true_time(self, moment: float) -> float:
        """When its clock shows this."""
        return (moment - self.offset) / self._rate

    def wakes_at(self, moment: float) -> float:
        """The true time of an alarm that it sets for this moment: then its clock does show it, and not just nearly."""
        return self.true_time(moment) + ALARM_DELAY

    def start(self, coroutine: Coroutine[Trap, Any, Any], name: str) -> Task:
        task = Task(self, coroutine, f"{self.name}/{name}")
        self.tasks.append(task)
        return task

    def do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Something that comes to it from outside: at once, when it runs again, or never."""
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
        """No code of it runs any more, not even clean-up."""
        self.is_dead = True
        self.is_paused = False
        self.backlog.clear()
