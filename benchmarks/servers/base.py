"""The base class of servers. A server is started on a free port and on given cores, and always ended."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from tests.support.server_process import HERE, ServerProcess, dies_with_thread, running

HOST = HERE.address
_LISTENS = "0A"  # as in /proc/net/tcp


class ServerFailed(Exception):
    """The server did not start; the message is its last output."""


class Stats(Protocol):
    """The counters of a server."""

    def commands(self) -> float:
        """Return the number of commands, including those within scripts, without those that read the counters."""

    def pid(self) -> int:
        """The pid of its process."""

    def close(self) -> None: ...


class Server(ABC):
    """A kind of server: one process and one port, without authentication."""

    name: ClassVar[str]
    program: ClassVar[str]
    url: ClassVar[str]  # with a placeholder for the port
    request: ClassVar[bytes] = b""  # a request
    reply: ClassVar[bytes] = b""  # and the beginning of its answer
    version_pattern: ClassVar[str]  # the version in the output of the program
    refuses_root: ClassVar[bool] = False
    end_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def path(self) -> str | None:
        """The path of the program, or None if it is not on this machine."""
        return shutil.which(self.program)

    def version(self) -> str | None:
        """The version, or None if it is not on this machine."""
        path = self.path()
        return None if path is None else version_of((path, "--version"), self.version_pattern)

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        """Run a server in that folder and on these cores during the block. Return its URL.

        Raises:
            ServerFailed: it did not start.
        """
        with contextlib.ExitStack() as stack:
            if self.refuses_root:  # other users often cannot access the folder of the case
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-server-"))
            process = _PinnedProcess(self, Path(folder), cores)
            try:
                stack.enter_context(running(process))
            except (AssertionError, subprocess.CalledProcessError) as error:
                output = error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else process.log()
                raise ServerFailed(f"{self.program} did not start: {last_line(output)}") from error
            yield self.url.format(port=process.port)

    def initial_data(self) -> Sequence[str]:
        """The command that creates the folder "{folder}/data"; (): the server does so itself."""
        return ()

    @abstractmethod
    def command(self, folder: Path, port: int) -> list[str]: ...

    def answers(self, port: int) -> bool:
        return self.reply in ask(port, self.request)

    @abstractmethod
    def stats(self, url: str) -> Stats | None:
        """Its counters, or None if they are not exact and current."""


class _PinnedProcess(ServerProcess):
    """A server on the cores of a case."""

    def __init__(self, kind: Server, folder: Path, cores: Sequence[int]) -> None:
        super().__init__(folder)
        self._kind, self._cores = kind, cores
        self.refuses_root = kind.refuses_root

    def create(self) -> None:
        super().create()
        if self._kind.initial_data():
            self.create_data(*self._kind.initial_data())

    def prefix(self) -> list[str]:
        return pinned(self._cores, as_nobody=self.refuses_root)

    def command(self) -> list[str]:
        return self._kind.command(self.folder, self.port)

    def answers(self) -> bool:
        return self._kind.answers(self.port)

    def end(self) -> None:
        if self.is_running:
            self.end_with(self._kind.end_signal)


def missing(servers: Sequence[Server]) -> list[Server]:
    """Return the programs that are missing on this machine."""
    return [server for server in servers if server.version() is None]


@functools.cache
def version_of(command: tuple[str, ...], pattern: str) -> str:
    """Return the version in the output of a command, or a question mark."""
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.search(pattern, output)
    return match[1] if match else "?"


def pinned(cores: Sequence[int], *, as_nobody: bool = False) -> list[str]:
    """The command prefix that runs a process on these cores, and kills it with this one."""
    return ["taskset", "-c", ",".join(map(str, cores)), *dies_with_thread(as_nobody=as_nobody)]


def last_line(log: str) -> str:
    """Return the last line of output."""
    return log.strip().rpartition("\n")[2] or "it wrote nothing"


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def connect(port: int, timeout: float) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=timeout)


def ask(port: int, text: bytes) -> bytes:
    """Return the beginning of the answer of a server on a new connection."""
    with connect(port, 0.25) as probe:
        probe.sendall(text)
        return probe.recv(4096)


def pid_on(port: int) -> int:
    """Return the pid of the process that listens on a port."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    ours = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == _LISTENS}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if any(os.readlink(f"/proc/{name}/fd/{end}") in ours for end in os.listdir(f"/proc/{name}/fd")):
                return int(name)
    raise ServerFailed(f"no process listens on port {port}")
