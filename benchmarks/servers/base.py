"""What a server is, and how one is started: on a free port, on given cores, and never left behind."""

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
_LISTENS = "0A"  # as the kernel's table has it
TRIES = 5  # a port that is free now may be taken a moment later


class ServerFailed(Exception):
    """The server did not start; the message is the last that it said."""


class Stats(Protocol):
    """A server's own account of what it does."""

    def commands(self) -> float:
        """How many commands it has run, those within scripts included, and those of this account left out."""

    def pid(self) -> int:
        """Its process."""

    def close(self) -> None: ...


class Server(Protocol):
    """A kind of server."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> str:
        """What has to be on the PATH."""

    def version(self) -> str | None:
        """None: there is none on this machine."""

    def run(self, folder: str, cores: Sequence[int]) -> contextlib.AbstractContextManager[str]:
        """A server in that folder and on these cores, until the end of the block; its URL.

        Raises:
            ServerFailed: it did not come up.
        """

    def stats(self, url: str) -> Stats | None:
        """None: it keeps no account that is exact and up to date."""


class OnePort(ABC):
    """A server that is one process on one port, and answers without being asked who we are."""

    name: ClassVar[str]
    program: ClassVar[str]
    _url: ClassVar[str]  # with the port to be filled in
    _asked: ClassVar[bytes]  # what it is asked
    _answer: ClassVar[bytes]  # and what it answers when it is there
    _shown: ClassVar[str]  # the version in what it says of itself

    def version(self) -> str | None:
        found = shutil.which(self.program)
        return None if found is None else shown_version([found, "--version"], self._shown)

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        process, port = start(
            self.program,
            lambda port: self._command(folder, port),
            lambda port: self._answer in ask(port, self._asked),
            cores=cores,
            log=os.path.join(folder, "server.log"),
        )
        with ended(process):
            yield self._url.format(port=port)

    @abstractmethod
    def _command(self, folder: str, port: int) -> list[str]: ...


def missing(servers: Sequence[Server]) -> list[Server]:
    """Those that this machine does not have."""
    return [server for server in servers if server.version() is None]


def shown_version(command: Sequence[str], pattern: str) -> str:
    """The version in what a command says, or a question mark."""
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
    """A process on these cores that does not outlive this one.

    All that it says goes to the file, but for its stdout if `answers` is subprocess.PIPE.
    """
    return subprocess.Popen(
        [
            *("taskset", "-c", ",".join(map(str, cores))),
            *("setpriv", "--pdeathsig", "KILL", "--"),  # should nobody be left to end it
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
    """A process that serves, and its port: by the command for a port, when it is up there (an OSError is a no).

    Raises:
        ServerFailed: it ended, or it takes too long.
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
        if not has_ended:  # another port would not help
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
    """The last line that a process said."""
    with open(log, errors="replace") as said:
        return said.read().strip().rpartition("\n")[2] or "it said nothing"


def _comes_up(process: subprocess.Popen[bytes], port: int, is_up: Callable[[int], bool]) -> bool:
    """Wait for it; False if it ends instead, or takes too long."""
    backoff = time.monotonic() + START_MAX
    while process.poll() is None and time.monotonic() < backoff:
        with contextlib.suppress(OSError):
            if is_up(port):
                return process.poll() is None  # or somebody else has the port, and answers
        time.sleep(0.002)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def connect(port: int, timeout: float) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=timeout)


def ask(port: int, text: bytes) -> bytes:
    """The beginning of what a server answers on a connection of its own."""
    with connect(port, 0.25) as probe:
        probe.sendall(text)
        return probe.recv(4096)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def pid_on(port: int) -> int:
    """The process that listens there, for a server that does not tell its own."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    ours = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == _LISTENS}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if any(os.readlink(f"/proc/{name}/fd/{end}") in ours for end in os.listdir(f"/proc/{name}/fd")):
                return int(name)
    raise ServerFailed(f"nobody listens on port {port}")
