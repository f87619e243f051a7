"""The base class of servers. A server is started on a free port and on given cores, and always ended."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import IO, ClassVar, Protocol

HOST = "127.0.0.1"
START_MAX = 20.0  # seconds
_LISTENS = "0A"  # as in /proc/net/tcp
TRIES = 5  # a free port may be used by another process a moment later


class ServerFailed(Exception):
    """The server did not start; the message is its last output."""


class Stats(Protocol):
    """The counters of a server."""

    def commands(self) -> float:
        """Return the number of commands, including those within scripts, without those that read the counters."""

    def pid(self) -> int:
        """The pid of its process."""

    def close(self) -> None: ...


class Server(Protocol):
    """A kind of server."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> str:
        """The programs that must be on the PATH."""

    def version(self) -> str | None:
        """The version, or None if it is not on this machine."""

    def run(self, folder: str, cores: Sequence[int]) -> contextlib.AbstractContextManager[str]:
        """Run a server in that folder and on these cores during the block. Return its URL.

        Raises:
            ServerFailed: it did not start.
        """

    def stats(self, url: str) -> Stats | None:
        """Its counters, or None if they are not exact and current."""


class OnePort(ABC):
    """A server with one process and one port, without authentication."""

    name: ClassVar[str]
    program: ClassVar[str]
    _url: ClassVar[str]  # with a placeholder for the port
    _request: ClassVar[bytes]  # a request
    _reply: ClassVar[bytes]  # and the beginning of its answer
    _version_pattern: ClassVar[str]  # the version in the output

    def version(self) -> str | None:
        found = shutil.which(self.program)
        return None if found is None else version_of([found, "--version"], self._version_pattern)

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        process, port = start(
            self.program,
            lambda port: self._command(folder, port),
            lambda port: self._reply in ask(port, self._request),
            cores=cores,
            log=os.path.join(folder, "server.log"),
        )
        with ended(process):
            yield self._url.format(port=port)

    @abstractmethod
    def _command(self, folder: str, port: int) -> list[str]: ...


def missing(servers: Sequence[Server]) -> list[Server]:
    """Return the programs that are missing on this machine."""
    return [server for server in servers if server.version() is None]


def version_of(command: Sequence[str], pattern: str) -> str:
    """Return the version in the output of a command, or a question mark."""
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(pattern, shown)
    return found[1] if found else "?"


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def launch(
    command: Sequence[str],
    cores: Sequence[int],
    *,
    said: IO[bytes],
    answers: int | None = None,
    folder: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process on these cores that does not outlive this one.

    Its output is written to the file, except for stdout if `answers` is subprocess.PIPE.
    """
    return subprocess.Popen(
        [
            *("taskset", "-c", ",".join(map(str, cores))),
            *("setpriv", "--pdeathsig", "KILL", "--"),  # in case this process is killed
            *command,
        ],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=said if answers is None else answers,
        stderr=said,
        start_new_session=True,  # Ctrl-C is for the runner
    )


def start(
    program: str,
    command: Callable[[int], Sequence[str]],
    is_up: Callable[[int], bool],
    *,
    cores: Sequence[int],
    log: str,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server, and return its process and port when it is up.

    Raises:
        ServerFailed: it ended, or did not start in time.
    """
    for _ in range(TRIES):
        port = free_port()
        with open(log, "wb") as said:
            process = launch(command(port), cores, said=said)
        try:
            if _comes_up(process, port, is_up):
                return process, port
            has_ended = process.poll() is not None
        except BaseException:
            _kill(process)
            raise
        _kill(process)
        if not has_ended:  # another port does not help
            break
    raise ServerFailed(f"{program} did not start: {last_of(log)}")


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Killed after the block."""
    try:
        yield
    finally:
        _kill(process)


def last_of(log: str) -> str:
    """Return the last line of output."""
    with open(log, errors="replace") as said:
        return said.read().strip().rpartition("\n")[2] or "it said nothing"


def _comes_up(process: subprocess.Popen[bytes], port: int, is_up: Callable[[int], bool]) -> bool:
    """Wait until it is up. Return False if it ends or does not start in time."""
    backoff = time.monotonic() + START_MAX
    while process.poll() is None and time.monotonic() < backoff:
        with contextlib.suppress(OSError):
            if is_up(port):
                return process.poll() is None  # otherwise another process may have the port and answer
        time.sleep(0.002)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def connect(port: int, timeout: float) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=timeout)


def ask(port: int, text: bytes) -> bytes:
    """Return the beginning of the answer of a server on a new connection."""
    with connect(port, 0.25) as probe:
        probe.sendall(text)
        return probe.recv(4096)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def pid_on(port: int) -> int:
    """Return the pid of the process that listens on a port."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    ours = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == _LISTENS}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if any(os.readlink(f"/proc/{name}/fd/{end}") in ours for end in os.listdir(f"/proc/{name}/fd")):
                return int(name)
    raise ServerFailed(f"nobody listens on port {port}")
