"""The processes of one case: forked before anything is opened, started together, and read at the end.

Their start is not measured: each reports when it is ready, and all begin at the same moment.
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

LIFE_MAX = 120  # seconds; maximum life of a process, in case the runner was killed
HEAD_START = 0.05  # seconds between the message and the start, so that all processes have received it

# The function of each process: it gets its number and its end of the pipe. Its result is the last answer.
Part = Callable[[int, Connection], Any]


class Failed(Exception):
    """A process of the group failed; the message is its error."""


class ProcessGroup:
    """Several processes, each running `part`."""

    def __init__(self, number: int, part: Part) -> None:
        # A fork of a process without threads and connections is equivalent to a new process, and faster to start.
        context = multiprocessing.get_context("fork")
        self._ends: list[Connection] = []
        self._processes = []
        for index in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_part, args=(part, index, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def receive(self) -> list[Any]:
        """Return the next answer of each process.

        Raises:
            Failed: a process has failed.
        """
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._ends):
            for end in wait([end for end in self._ends if end not in answers]):
                assert isinstance(end, Connection)
                try:
                    kind, content = end.recv()
                except EOFError:
                    raise Failed("a process ended without an answer") from None
                if kind == "failed":  # at once, because the others may wait for its lock
                    raise Failed(content)
                answers[end] = content
        return [answers[end] for end in self._ends]

    def send(self, message: object) -> None:
        for end in self._ends:
            end.send(message)

    def start(self) -> float:
        """Wait until all are ready, send them the time of the start, and return it."""
        self.receive()
        begin = now() + HEAD_START
        self.send(begin)
        return begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.join(None if error is None else 0)
            process.kill()


def answer(end: Connection, content: object) -> None:
    """Send an answer to the parent process."""
    end.send(("ok", content))


def ready(end: Connection) -> float:
    """Report that this process is ready, and return the time of the start."""
    answer(end, None)
    begin: float = end.recv()
    return begin


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - now()))


def cpu_of(pid: int) -> float:
    """CPU seconds of another process, with all its threads: the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


def _run_part(part: Part, index: int, end: Connection) -> None:
    signal.alarm(LIFE_MAX)
    try:
        end.send(("ok", part(index, end)))
    except BaseException as error:
        traceback.print_exc()
        end.send(("failed", f"{type(error).__name__}: {error}"))
