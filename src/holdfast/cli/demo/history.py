"""The turns of the workers, and the checks on them. Pure: no process, no clock, no output."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

# acquired    timed right after the acquire
# keeping     the work is done, but the worker keeps the lock
# stuck       it has kept the lock for some time: the runner kills it
# releasing   timed right before the release
# ended       added by the runner when the process has exited
Kind = Literal["acquired", "keeping", "stuck", "releasing", "failed", "ended"]


class Event(NamedTuple):
    """One line of a worker."""

    worker: int
    kind: Kind
    at: float  # seconds, on the clock that all processes of a machine share
    fence: int = 0
    requested: float = 0.0  # when the worker began to wait
    error: str = ""


@dataclass(slots=True)
class Turn:
    """One lease, as its holder saw it."""

    worker: int
    fence: int
    requested: float
    acquired: float
    ended: float = math.inf  # inf: it is still held


class History:
    """All turns so far, and the kill."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []  # in the order in which they began
        self.errors: list[str] = []
        self.killed: tuple[int, float] | None = None  # the worker, and a time at which it was still alive

    def add(self, event: Event) -> None:
        if event.kind == "acquired":
            self.turns.append(Turn(event.worker, event.fence, event.requested, event.at))
            self.turns.sort(key=lambda turn: turn.acquired)
        elif event.kind not in ("keeping", "stuck"):
            self._end_turn(event.worker, event.at)
        if event.error:
            self.errors.append(f"worker {event.worker}: {event.error}")

    def add_kill(self, worker: int, at: float) -> None:
        self.killed = (worker, at)
        self._end_turn(worker, at)

    def _end_turn(self, worker: int, at: float) -> None:
        for turn in self.turns:
            if turn.worker == worker:
                turn.ended = min(turn.ended, at)

    @property
    def takeover(self) -> float | None:
        """Seconds from the kill to the next turn of another worker."""
        if self.killed is None:
            return None
        worker, at = self.killed
        return next((turn.acquired - at for turn in self.turns if turn.worker != worker and turn.acquired > at), None)

    def overlaps(self) -> list[tuple[Turn, Turn]]:
        """Pairs of turns, of which the second began before the first had ended."""
        latest: Iterator[Turn] = accumulate(self.turns, lambda one, other: one if one.ended >= other.ended else other)
        pairs = zip(latest, self.turns[1:], strict=False)  # the turn so far that ends last, and the next one
        return [(before, turn) for before, turn in pairs if turn.acquired < before.ended]

    def problems(self) -> list[str]:
        """Every failed check; empty if all checks passed."""
        problems = list(self.errors)
        for first, second in self.overlaps():
            problems.append(f"workers {first.worker} and {second.worker} held the lock at the same time")
        for before, after in pairwise(self.turns):
            if after.fence <= before.fence:
                problems.append(f"fence {after.fence} followed {before.fence} and is not greater")
        if self.killed is None:
            problems.append("no holder was killed")
        elif self.takeover is None:
            problems.append(f"no worker acquired the lock after worker {self.killed[0]} was killed")
        return problems

    def summary(self, ttl: float) -> list[str]:
        turns, problems = self.turns, self.problems()
        lines = [f"{len(turns)} turns, {len(self.overlaps())} overlaps"]
        if turns:
            longest = max(turn.acquired - turn.requested for turn in turns)
            lines += [f"fences from {turns[0].fence} to {turns[-1].fence}", f"longest wait {longest:.3f} s"]
        handovers = [
            after.acquired - before.ended for before, after in pairwise(turns) if after.requested < before.ended
        ]
        if handovers:
            lines.append(
                f"hand-over {statistics.median(handovers) * 1000:.1f} ms (median), from release to next acquire"
            )
        if self.takeover is not None:
            lines.append(f"takeover {self.takeover * 1000:.1f} ms after kill -9 (ttl {ttl:g} s)")
        if problems:
            return [*lines, *(f"FAILED: {problem}" for problem in problems)]
        return [*lines, "all checks passed: never two holders, and every fence is greater than the one before"]
