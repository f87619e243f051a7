"""The worker processes: starting them, talking to them, and leaving none behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.cli.demo.report import Report, clock

END_MAX = 3.0  # seconds that a worker may take to end by itself
_READ_MAX = 65536


class Setup(NamedTuple):
    """What all workers need to know."""

    url: str
    lock: str
    ttl: float


class Crew:
    """Workers 1 to `count`. They run while this is entered, and not a moment longer."""

    def __init__(self, count: int, setup: Setup) -> None:
        self._setup = setup
        self._count = count
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._rests: dict[int, bytes] = {}  # the beginning of a line whose end has not come yet
        self._killed: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        try:
            for number in range(1, self._count + 1):
                self._start(number)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def pids(self) -> dict[int, int]:
        return {number: process.pid for number, process in self._processes.items()}

    @property
    def is_gone(self) -> bool:
        """All workers have ended."""
        return not self._selector.get_map()

    def tell(self, number: int, word: str) -> None:
        """Say go, stay or end to one worker."""
        pipe = self._processes[number].stdin
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died; `reports` says so
                pipe.write(f"{word}\n".encode())

    def tell_all(self, word: str) -> None:
        for number in self._processes:
            self.tell(number, word)

    def kill(self, number: int) -> None:
        """Kill -9: the worker has no chance to say or give back anything."""
        self._killed.add(number)
        self._processes[number].kill()

    def reports(self, wait_max: float) -> list[Report]:
        """What the workers said meanwhile, in the order of its time; waits for it up to `wait_max` seconds."""
        found: list[Report] = []
        for key, _ in self._selector.select(wait_max):
            number: int = key.data
            data = os.read(key.fd, _READ_MAX)
            if not data:
                self._selector.unregister(key.fileobj)
                found.append(self._last_report(number))
                continue
            *lines, self._rests[number] = (self._rests[number] + data).split(b"\n")
            found += map(Report.of_line, lines)
        return sorted(found, key=lambda report: report.at)

    def _start(self, number: int) -> None:
        # -P keeps the current folder from hiding modules, unless this program was found there itself.
        isolation = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *isolation, "-m", "holdfast.cli.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C is for us; we tell them
        )
        self._processes[number] = process
        self._rests[number] = b""
        if process.stdout is not None:
            self._selector.register(process.stdout, selectors.EVENT_READ, number)
        self.tell(number, json.dumps({"number": number, **self._setup._asdict()}))

    def _last_report(self, number: int) -> Report:
        status = self._processes[number].wait()
        expected = number in self._killed or status == 0
        return Report(number, "ended", clock(), text="" if expected else f"ended with status {status}")

    def _close(self) -> None:
        """Ask all to end, which takes milliseconds, and kill whoever does not."""
        self.tell_all("end")
        deadline = clock() + END_MAX
        while not self.is_gone and clock() < deadline:
            self.reports(deadline - clock())  # read, or a full pipe would stop them
        for process in self._processes.values():
            process.kill()  # does nothing to one that has ended
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._selector.close()
