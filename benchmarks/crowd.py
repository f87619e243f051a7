"""The processes of one case: forked before anything is opened, told when to start, asked what they saw.

Starting them is not measured: each says when it is ready, and all begin at the same moment.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import now

LIFE_MAX = 120  # seconds: a process of ours ends by then even if nobody is left to end it
HEAD_START = 0.05  # seconds between "go" and the start, so that all have heard it

# What each process runs: its number, and its end of the pipe. What it returns is its last answer.
Part = Callable[[int, Connection], Any]


class Failed(Exception):
    """A process of the crowd did not do its part; the message is the error that it met."""


class Crowd:
    """So many processes, each running `part`."""

    def __init__(self, number: int, part: Part) -> None:
        # A fork of a process that has no thread and has opened nothing is as good as a new one, and 64 of them are
        # there at once.
        context = multiprocessing.get_context("fork")
        self._ends: list[Connection] = []
        self._processes = []
        for who in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_play, args=(part, who, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def hear(self) -> list[Any]:
        """The next answer of each.

        Raises:
            Failed: one of them could not go on.
        """
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._ends):
            for end in wait([end for end in self._ends if end not in answers]):
                assert isinstance(end, Connection)
                try:
                    kind, said = end.recv()
                except EOFError:
                    raise Failed("a process ended without an answer") from None
                if kind == "failed":  # now, not after the others: they may be waiting for what this one holds
                    raise Failed(said)
                answers[end] = said
        return [answers[end] for end in self._ends]

    def tell(self, what: object) -> None:
        for end in self._ends:
            end.send(what)

    def start(self) -> float:
        """When all are ready, tell them the moment to begin, and return it."""
        self.hear()
        begin = now() + HEAD_START
        self.tell(begin)
        return begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.join(None if error is None else 0)
            process.kill()


def answer(end: Connection, what: object) -> None:
    """Say something to the one who made the crowd."""
    end.send(("ok", what))


def ready(end: Connection) -> float:
    """Say so, and return the moment at which to begin."""
    answer(end, None)
    begin: float = end.recv()
    return begin


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - now()))


def cpu_of(pid: int) -> float:
    """CPU seconds of another process, with all its threads: the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


def _play(part: Part, who: int, end: Connection) -> None:
    signal.alarm(LIFE_MAX)
    try:
        end.send(("ok", part(who, end)))
    except BaseException as error:
        traceback.print_exc()
        end.send(("failed", f"{type(error).__name__}: {error}"))
