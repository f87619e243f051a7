"""What happened in the demo, and whether it was right. Pure: no process, no clock, no output."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from holdfast.cli.demo.report import Report

State = Literal["starting", "resting", "waiting", "holds", "killed", "ended"]

_STATE_AFTER: dict[str, State] = {
    "ready": "resting",
    "asks": "waiting",
    "got": "holds",
    "stays": "holds",
    "done": "resting",
    "failed": "ended",
    "ended": "ended",
}


@dataclass(slots=True)
class Turn:
    """One lease of one worker, as it saw it itself."""

    worker: int
    fence: int
    asked: float
    start: float
    end: float | None = None  # None: it has it still

    @property
    def waited(self) -> float:
        return self.start - self.asked


@dataclass(slots=True)
class WorkerState:
    """Where a worker stands."""

    state: State = "starting"
    since: float = 0.0
    turns: int = 0
    wait_max: float = 0.0
    fence: int = 0  # of its latest lease


class Kill(NamedTuple):
    """Whom we killed, and when: read before the kill, so the worker was alive then."""

    worker: int
    at: float


class Record:
    """Fed with reports; knows the turns, what is going on, and what is wrong."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.turns: list[Turn] = []  # as reported; `in_order` sorts
        self.workers = {number: WorkerState() for number in workers}
        self.killed: Kill | None = None
        self.trouble: list[str] = []
        self._current: dict[int, Turn] = {}

    def add(self, report: Report) -> None:
        worker = self.workers[report.worker]
        if report.what == "got":
            turn = Turn(report.worker, report.fence, asked=worker.since, start=report.at)
            self.turns.append(turn)
            self._current[report.worker] = turn
            worker.turns += 1
            worker.fence = report.fence
            worker.wait_max = max(worker.wait_max, turn.waited)
        elif report.what in ("done", "failed", "ended") and report.worker in self._current:
            self._current.pop(report.worker).end = report.at
        if report.what in ("failed", "ended") and report.text:
            self.trouble.append(f"worker {report.worker} {report.text}")
        if worker.state != "killed" and report.what != "stays":
            worker.state, worker.since = _STATE_AFTER[report.what], report.at

    def add_kill(self, worker: int, at: float) -> None:
        self.killed = Kill(worker, at)
        if worker in self._current:
            self._current.pop(worker).end = at
        self.workers[worker].state, self.workers[worker].since = "killed", at

    @property
    def all_ready(self) -> bool:
        return all(worker.state != "starting" for worker in self.workers.values())

    def waiting(self) -> list[int]:
        """Who waits, as they say themselves; the store knows the order better."""
        waiting = [number for number, worker in self.workers.items() if worker.state == "waiting"]
        return sorted(waiting, key=lambda number: self.workers[number].since)

    def in_order(self) -> list[Turn]:
        return sorted(self.turns, key=lambda turn: turn.start)

    @property
    def first_fence(self) -> int:
        return self.in_order()[0].fence if self.turns else 0

    @property
    def takeover(self) -> Turn | None:
        """The first turn after the kill."""
        if self.killed is None:
            return None
        later = [turn for turn in self.turns if turn.worker != self.killed.worker and turn.start > self.killed.at]
        return min(later, key=lambda turn: turn.start, default=None)

    def takeover_time(self) -> float | None:
        return self.takeover.start - self.killed.at if self.takeover and self.killed else None

    def wait_max(self) -> float:
        return max((turn.waited for turn in self.turns), default=0.0)

    def hand_over_median(self) -> float | None:
        """From the moment before one gives it back to the moment after the next has it, where that one waited."""
        gaps = [
            after.start - before.end
            for before, after in pairwise(self.in_order())
            if before.end is not None and after.asked < before.end and not self._was_killed_in(before)
        ]
        return statistics.median(gaps) if gaps else None

    def overlaps(self) -> list[tuple[Turn, Turn]]:
        """All pairs of neighbours of which the second began before the first was over."""
        found = []
        latest: Turn | None = None  # of those so far, the one that ends last
        for turn in self.in_order():
            if latest is not None and (latest.end is None or turn.start < latest.end):
                found.append((latest, turn))
            if latest is None or (latest.end is not None and (turn.end is None or turn.end > latest.end)):
                latest = turn
        return found

    def problems(self) -> list[str]:
        """Everything that is not as it must be; empty if all is well."""
        found = list(self.trouble)
        if not self.turns:
            found.append("nobody ever got the lock")
        for first, second in self.overlaps():
            found.append(f"workers {first.worker} and {second.worker} held the lock at the same time")
        for before, after in pairwise(self.in_order()):
            if after.fence <= before.fence:
                found.append(f"fence {after.fence} came after {before.fence} and is not greater")
        if self.killed is None:
            found.append("no holder was killed")
        elif self.takeover is None:
            found.append(f"nobody took over from worker {self.killed.worker} after its death")
        return found

    def _was_killed_in(self, turn: Turn) -> bool:
        return self.killed is not None and self.killed.worker == turn.worker and self.killed.at == turn.end
