"""Worker processes for tests. They receive commands as JSON lines, can be stopped and killed, and are always reaped.

A worker reads commands from a channel and answers each with one line:

    {"do": "acquire", "lock": "a", "ttl": 30}        ->   {"fence": 7, "acquired": 812.25}
                                                     or   {"error": "LockLost", "message": "lock 'a' …"}

No worker outlives a test: `WorkerPool` kills and reaps all its workers at the end. A worker ends when its channel is
closed. It also sets a parent-death signal, so a killed test run leaves no worker. The kernel sends that signal when the
*thread* that started the worker ends, so workers are started from the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast_lab.conformance.forked import ForkedProcess

WORKER = os.path.join(os.path.dirname(__file__), "worker.py")  # executes commands on locks of any store
_IS_MEASURED = "COVERAGE_PROCESS_CONFIG" in os.environ  # by coverage, from the start of each process
PATIENCE = 30.0  # seconds; longer than any step takes on a busy machine, so a timeout is a failure


def now() -> float:
    """Read the clock that all processes of a machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def eventually(condition: Callable[[], bool], *, within: float = PATIENCE) -> None:
    """Poll until the condition holds; fail if it does not in time."""
    begun = now()
    while not condition():
        waited = now() - begun
        assert waited < within, f"condition not met within {within:g} s"
        time.sleep(poll_interval(waited))


def poll_interval(waited: float) -> float:
    """Return the seconds until the next poll. Longer waits poll less often, because other tests need the server too."""
    return min(max(0.005, waited / 10), 0.025)


class Refused(Exception):
    """The worker answered with an error; `kind` is the name of its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Channel:
    """Two pipes: one for commands, one for answers."""

    def __init__(self, to: int, back: int, died: int) -> None:
        """`died` is a pidfd: it becomes readable when the process at the other end has ended."""
        self._to = to
        self._back = back
        self._died = died
        self._received = b""

    def send(self, do: str, **arguments: object) -> None:
        """Send a command without waiting for its answer."""
        _write_all(self._to, json.dumps({"do": do, **arguments}).encode() + b"\n")

    def call(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.send(do, **arguments)
        return self.receive()

    def receive(self, within: float = PATIENCE) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            Refused: the answer is an error.
        """
        line = self._line(within)
        assert line is not None, f"no answer within {within:g} s"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer

    def is_silent(self, during: float) -> bool:
        """Whether no answer arrives during this time. An answer is kept for `receive`."""
        line = self._line(during)
        if line is None:
            return True
        self._received = line + b"\n" + self._received
        return False

    def close(self) -> None:
        os.close(self._to)
        os.close(self._back)

    def _line(self, within: float) -> bytes | None:
        end = now() + within
        while b"\n" not in self._received:
            left = end - now()
            if left <= 0:
                return None
            readable, _, _ = select.select([self._back, self._died], [], [], left)
            if self._back in readable:
                data = os.read(self._back, 1 << 20)
                assert data, "the worker has closed its channel"
                self._received += data
            elif readable:
                raise AssertionError("the worker has died")
        line, _, self._received = self._received.partition(b"\n")
        return line


class Worker(Channel):
    """A worker process. With `forks`, `child` is the channel of a child process that it forks."""

    def __init__(
        self, script: str, arguments: Sequence[str], *, forks: bool = False, under: Sequence[str] = ()
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        with contextlib.ExitStack() as theirs:
            stdin, to = _pipe(theirs, ours=1)
            back, stdout = _pipe(theirs, ours=0)
            extra: tuple[int, ...] = ()
            self._child_ends: tuple[int, int] | None = None
            if forks:
                child_in, child_to = _pipe(theirs, ours=1)
                child_back, child_out = _pipe(theirs, ours=0)
                extra = (child_in, child_out)
                self._child_ends = (child_to, child_back)
            arguments = [*arguments, *(str(fd) for fd in extra)]
            self._process: ForkedProcess | subprocess.Popen[bytes]
            if under or _IS_MEASURED:
                self._process = subprocess.Popen(
                    [*under, sys.executable, script, *arguments],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=self._errors,
                    pass_fds=extra,
                )
            else:
                self._process = ForkedProcess(script, arguments, (stdin, stdout, self._errors.fileno()), extra)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.child: Channel | None = None
        self._child_pidfd: int | None = None
        super().__init__(to, back, self._pidfd)

    def receive(self, within: float = PATIENCE) -> dict[str, Any]:
        try:
            return super().receive(within)
        except AssertionError as error:
            error.add_note(f"worker {self.pid} wrote:\n{self.errors()}")
            raise

    def fork(self) -> Channel:
        """Make the worker fork. Return the channel of the child."""
        assert self._child_ends is not None
        assert self.child is None
        pid = self.call("fork")["pid"]
        self._child_pidfd = os.pidfd_open(pid)
        self.child = Channel(*self._child_ends, self._child_pidfd)
        self.child.receive()
        return self.child

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is reaped."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        """Send SIGSTOP and wait until the process is stopped."""
        stop_process(self.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def release(self) -> None:
        """Close its client and end the process; any error is a failure."""
        self.call("close")
        self.send("end")
        assert self._process.wait(PATIENCE) == 0, self.errors()

    def errors(self) -> str:
        """Return what it wrote to stderr so far."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def end(self) -> None:
        """Kill it, if it still runs, and release all its resources."""
        self._process.kill()
        self._process.wait()
        if self._child_pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child_pidfd, signal.SIGKILL)
            os.close(self._child_pidfd)
        if self.child is not None:
            self.child.close()
        elif self._child_ends is not None:
            for fd in self._child_ends:
                os.close(fd)
        os.close(self._pidfd)
        self.close()
        self._errors.close()


class WorkerPool:
    """All workers of a test; they end with it. A worker that wrote a traceback fails the test."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._workers: list[Worker] = []

    def start(self, *arguments: str, forks: bool = False, under: Sequence[str] = ()) -> Worker:
        """Start a worker. `under` is a command prefix that executes the rest of its arguments."""
        return self.start_many(1, *arguments, forks=forks, under=under)[0]

    def start_many(self, number: int, *arguments: str, forks: bool = False, under: Sequence[str] = ()) -> list[Worker]:
        workers = []
        for _ in range(number):
            worker = Worker(self._script, arguments, forks=forks, under=under)
            self._workers.append(worker)
            workers.append(worker)
        for worker in workers:
            worker.receive()
        return workers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failures = []
        for worker in self._workers:
            errors = worker.errors()
            worker.end()
            if "Traceback" in errors or "Exception ignored" in errors:
                failures.append(f"worker {worker.pid} wrote:\n{errors}")
        assert not failures, "\n".join(failures)


def _pipe(theirs: contextlib.ExitStack, *, ours: int) -> tuple[int, int]:
    """Create a pipe. The end of the worker is closed here after the start."""
    ends = os.pipe()
    theirs.callback(os.close, ends[1 - ours])
    return ends


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def stop_process(pid: int) -> None:
    """Send SIGSTOP and return when no thread of the process runs: a running thread could still acquire a lock."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _is_stopped(pid))


def _is_stopped(pid: int) -> bool:
    try:
        return all(process_state(int(thread)) == "T" for thread in os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False


def process_state(pid: int) -> str:
    """The state of a process or thread as in /proc: "R" running, "S" waiting, "T" stopped."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
