"""Worker processes, as the parent sees them: started, commanded, stopped, killed, and always reaped."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Any, Self

from holdfast.runtimes.system import now

from .hub import Job

ANSWER_MAX = 60.0  # seconds; longer than any command takes on a busy machine


class RunFailed(Exception):
    """The run cannot go on: a worker has died or gives no answer. The message has its last lines on stderr."""


class Process:
    """One worker process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.client = job.client
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast_lab.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # a pipe
        self._stdout: IO[bytes] = self._process.stdout  # type: ignore[assignment]  # a pipe
        self._received = b""
        self._send(job._asdict())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            RunFailed: it has died or does not answer.
        """
        self._send({"do": do, **arguments})
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The next answer."""
        fd = self._stdout.fileno()
        end = now() + ANSWER_MAX
        while b"\n" not in self._received:
            readable, _, _ = select.select([fd], [], [], max(0.0, end - now()))
            data = os.read(fd, 1 << 16) if readable else b""
            if not data:
                state = "has died" if readable else f"gave no answer in {ANSWER_MAX:g} s"
                raise RunFailed(f"{self.client} {state}: {self.errors()}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, line: dict[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(line).encode() + b"\n")
            self._stdin.flush()
        except OSError as error:
            raise RunFailed(f"{self.client} has died: {self.errors()}") from error

    def stop(self) -> None:
        """Send SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is reaped."""
        self._process.kill()
        self._process.wait()

    def errors(self) -> str:
        """The end of what it wrote to stderr."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip()

    def end(self) -> None:
        """Kill it, if it still runs, and free its resources."""
        self.kill()
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self._errors.close()


class Processes:
    """All worker processes of a run; none outlives the `with` block."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def start(self, job: Job) -> Process:
        """Start a worker; `receive` returns when it is ready."""
        process = Process(job)
        self._all.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.end()
