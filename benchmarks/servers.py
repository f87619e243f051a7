"""Servers that contenders talk to: each case has one of its own, on a free port of this machine and on the cores of
the case, with nothing kept on disk. The runner starts and ends it.

What a measure may ask a server is in `Stats`. Not here: any client library, so that counting disturbs nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Protocol
from urllib.parse import urlsplit

HOST = "127.0.0.1"
START_MAX = 5.0  # seconds
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

    def stats(self, url: str) -> Stats: ...


class Redis:
    """redis-server, without persistence."""

    name = "Redis"
    program = "redis-server"

    def version(self) -> str | None:
        if shutil.which(self.program) is None:
            return None
        shown = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"v=(\S+)", shown)
        return found[1] if found else "?"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        process, port = self._start(folder, cores)
        try:
            yield f"redis://{HOST}:{port}/0"
        finally:
            process.kill()
            process.wait()

    def stats(self, url: str) -> Stats:
        return _RedisStats(url)

    def _start(self, folder: str, cores: Sequence[int]) -> tuple[subprocess.Popen[bytes], int]:
        log = os.path.join(folder, "server.log")
        for _ in range(TRIES):
            port = _free_port()
            with open(log, "wb") as said:
                process = launch(
                    [
                        *(self.program, "--port", str(port), "--bind", HOST, "--dir", folder),
                        *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
                    ],
                    cores,
                    said=said,
                )
            try:
                if _answers(process, port):
                    return process, port
            except BaseException:
                process.kill()
                process.wait()
                raise
            process.kill()
            process.wait()
        raise ServerFailed(f"{self.program} did not start: {last_of(log)}")


class RedisNodes(Redis):
    """Several of them, which know nothing of each other; the URL names all: redlock://h1:1,h2:2,h3:3."""

    def __init__(self, number: int) -> None:
        self._number = number

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        with contextlib.ExitStack() as running:
            nodes = []
            for number in range(self._number):
                own = os.path.join(folder, f"node-{number}")
                os.mkdir(own)
                nodes.append(urlsplit(running.enter_context(super().run(own, cores))).netloc)
            yield f"redlock://{','.join(nodes)}"

    def stats(self, url: str) -> Stats:
        raise NotImplementedError  # no measure asks for it: several servers have no account in common


class Etcd:
    """One etcd. It keeps its data in memory where there is such a folder: it is not the disk that is measured."""

    name = "etcd"
    program = "etcd"

    def version(self) -> str | None:
        if shutil.which(self.program) is None:
            return None
        shown = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"etcd Version: (\S+)", shown)
        return found[1] if found else "?"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        memory = "/dev/shm"  # noqa: S108 (a folder of its own is made there)
        with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else folder) as data:
            process, port = self._start(folder, data, cores)
            try:
                yield f"etcd://{HOST}:{port}"
            finally:
                process.kill()
                process.wait()

    def stats(self, url: str) -> Stats:
        raise NotImplementedError  # tests/integration/etcd/test_crowds.py counts

    def _start(self, folder: str, data: str, cores: Sequence[int]) -> tuple[subprocess.Popen[bytes], int]:
        log = os.path.join(folder, "server.log")
        for attempt in range(TRIES):
            port, peer = _free_port(), _free_port()
            client, between = f"http://{HOST}:{port}", f"http://{HOST}:{peer}"
            with open(log, "wb") as said:
                process = launch(
                    [
                        *(self.program, "--name", "n0", "--data-dir", os.path.join(data, str(attempt))),
                        *("--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"),
                        *("--listen-peer-urls", between, "--initial-advertise-peer-urls", between),
                        *("--initial-cluster", f"n0={between}", "--heartbeat-interval", "20"),
                        *("--election-timeout", "200"),
                    ],
                    cores,
                    said=said,
                )
            try:
                if _answers(process, port, b"GET /health HTTP/1.0\r\n\r\n", b'"health":"true"'):
                    return process, port
            except BaseException:
                process.kill()
                process.wait()
                raise
            process.kill()
            process.wait()
        raise ServerFailed(f"{self.program} did not start: {last_of(log)}")


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


def last_of(log: str) -> str:
    """The last line that a process said."""
    with open(log, errors="replace") as said:
        return said.read().strip().rpartition("\n")[2] or "it said nothing"


def missing(servers: Sequence[Server]) -> list[Server]:
    """Those that this machine does not have."""
    return [server for server in servers if server.version() is None]


class _RedisStats:
    """INFO, over a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=10.0)
        self._stream = self._socket.makefile("rb")
        self._asked = 0

    def commands(self) -> float:
        # INFO counts itself only after it has answered, so the answer holds the earlier ones of ours and not this one.
        found = float(self._info("stats", "total_commands_processed")) - self._asked
        self._asked += 1
        return found

    def pid(self) -> int:
        found = int(self._info("server", "process_id"))
        self._asked += 1
        return found

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _info(self, section: str, key: str) -> str:
        self._socket.sendall(f"INFO {section}\r\n".encode())
        size = int(self._stream.readline()[1:])
        text = self._stream.read(size + 2).decode()
        found = re.search(rf"^{key}:(\S+)", text, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"INFO {section} has no {key}")
        return found[1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(
    process: subprocess.Popen[bytes], port: int, asked: bytes = b"PING\r\n", wanted: bytes = b"+PONG\r\n"
) -> bool:
    """Wait until it does; False if it ends instead, or takes too long."""
    patience = time.monotonic() + START_MAX
    while process.poll() is None and time.monotonic() < patience:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=0.25) as probe:
            probe.sendall(asked)
            if wanted in probe.recv(4096):
                return process.poll() is None  # or somebody else has the port, and answers
        time.sleep(0.002)
    return False
