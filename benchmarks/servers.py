"""Servers that contenders talk to: each case has one of its own, on a free port of this machine and on the cores of
the case, with nothing kept on disk. The runner starts and ends it.

What a measure may ask a server is in `Stats`. Not here: any client library, so that counting disturbs nobody.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import IO, ClassVar, Protocol
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

    def stats(self, url: str) -> Stats | None:
        """None: it keeps no account that is exact and up to date."""


class _OnePort(ABC):
    """A server that is one process on one port."""

    name: ClassVar[str]
    program: ClassVar[str]
    _url: ClassVar[str]  # with the port to be filled in
    _asked: ClassVar[bytes]  # what it is asked
    _answer: ClassVar[bytes]  # and what it answers when it is there
    _shown: ClassVar[str]  # the version in what it says of itself

    def version(self) -> str | None:
        if shutil.which(self.program) is None:
            return None
        shown = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(self._shown, shown)
        return found[1] if found else "?"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        process, port = self._start(folder, cores)
        try:
            yield self._url.format(port=port)
        finally:
            process.kill()
            process.wait()

    @abstractmethod
    def _command(self, folder: str, port: int) -> list[str]: ...

    def _start(self, folder: str, cores: Sequence[int]) -> tuple[subprocess.Popen[bytes], int]:
        log = os.path.join(folder, "server.log")
        for _ in range(TRIES):
            port = _free_port()
            with open(log, "wb") as said:
                process = launch(self._command(folder, port), cores, said=said)
            try:
                if _answers(process, port, self._asked, self._answer):
                    return process, port
            except BaseException:
                process.kill()
                process.wait()
                raise
            process.kill()
            process.wait()
        raise ServerFailed(f"{self.program} did not start: {last_of(log)}")


class Postgresql:
    """PostgreSQL of the distribution, whose programs are not on the PATH; what is committed need not reach the disk."""

    name = "PostgreSQL"
    program = "postgres"

    def version(self) -> str | None:
        programs = self._programs()
        if programs is None:
            return None
        command = [os.path.join(programs, self.program), "--version"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"(\d[\d.]*)", shown)
        return found[1] if found else "?"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        programs = self._programs() or ""
        with tempfile.TemporaryDirectory(prefix="holdfast-postgresql-") as own:  # where another user may get to
            _copy(_empty_databases(programs), own)
            port, log = _free_port(), os.path.join(folder, "server.log")
            settings = (
                f"listen_addresses={HOST}",
                f"unix_socket_directories={own}",
                "fsync=off",
                "max_connections=300",
            )
            words = [word for setting in settings for word in ("-c", setting)]
            command = [os.path.join(programs, self.program), "-D", os.path.join(own, "data"), "-p", str(port), *words]
            with open(log, "wb") as said:
                process = launch([*_another_user(own), *command], cores, said=said)
            try:
                if not _accepts(process, port):
                    raise ServerFailed(f"{self.program} did not start: {last_of(log)}")
                yield f"postgresql://postgres@{HOST}:{port}/postgres"
            finally:
                process.send_signal(signal.SIGQUIT)  # which its children hear of
                process.wait()

    def stats(self, url: str) -> None:
        """What it counts of its statements comes late."""

    def _programs(self) -> str | None:
        """The folder with the newest."""
        found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
        newest = max(found, key=lambda path: float(path.split("/")[4]), default=shutil.which(self.program))
        return os.path.dirname(os.path.realpath(newest)) if newest else None


class Redis(_OnePort):
    """redis-server, without persistence."""

    name = "Redis"
    program = "redis-server"
    _url = f"redis://{HOST}:{{port}}/0"
    _asked, _answer, _shown = b"PING\r\n", b"+PONG\r\n", r"v=(\S+)"

    def stats(self, url: str) -> Stats:
        return _RedisStats(url)

    def _command(self, folder: str, port: int) -> list[str]:
        return [
            *(self.program, "--port", str(port), "--bind", HOST, "--dir", folder),
            *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
        ]


class Memcached(_OnePort):
    """memcached, as it comes."""

    name = "memcached"
    program = "memcached"
    _url = f"memcached://{HOST}:{{port}}"
    _asked, _answer, _shown = b"mn\r\n", b"MN\r\n", r"memcached (\S+)"

    def stats(self, url: str) -> Stats:
        return _MemcachedStats(url)

    def _command(self, folder: str, port: int) -> list[str]:
        user = pwd.getpwuid(os.getuid()).pw_name  # as root it does not run unless it is told to
        return [self.program, "-l", HOST, "-p", str(port), "-U", "0", "-u", user]


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


class Zookeeper:
    """One ZooKeeper server. What it writes to its log is not forced to the disk."""

    name = "ZooKeeper"
    program = "java"
    _jars = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")

    def version(self) -> str | None:
        if shutil.which(self.program) is None or not all(map(os.path.exists, self._jars)):
            return None
        said = "org.apache.zookeeper.version.VersionInfoMain"
        command = [self.program, "-cp", ":".join(self._jars), said]
        found = re.search(
            r"version (\d[\d.]*)", subprocess.run(command, capture_output=True, text=True, check=False).stdout
        )
        return found[1] if found else "?"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        log, settings = os.path.join(folder, "server.log"), os.path.join(folder, "zoo.cfg")
        port = _free_port()
        with open(settings, "w") as written:
            written.write(f"tickTime=2000\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress={HOST}\n")
            written.write("admin.enableServer=false\nmaxClientCnxns=0\n")
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true"]
        flags += ["-Dzookeeper.4lw.commands.whitelist=*", "-Dzookeeper.preAllocSize=4096"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with open(log, "wb") as said:
            process = launch([self.program, *flags, "-cp", ":".join(self._jars), main, settings], cores, said=said)
        try:
            patience = time.monotonic() + 4 * START_MAX
            while "Mode:" not in _four_letters(port, "srvr"):
                if process.poll() is not None or time.monotonic() > patience:
                    raise ServerFailed(f"ZooKeeper did not start: {last_of(log)}")
                time.sleep(0.02)
            yield f"zookeeper://{HOST}:{port}/benchmark"
        finally:
            process.kill()
            process.wait()

    def stats(self, url: str) -> Stats:
        return _ZookeeperStats(url)


class _ZookeeperStats:
    """Its four-letter words, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._port = int(urlsplit(url).port or 0)

    def commands(self) -> float:
        return float(self._fact("zk_packets_received"))

    def pid(self) -> int:
        raise NotImplementedError  # no measure asks for it

    def close(self) -> None:
        """Nothing is left open."""

    def _fact(self, name: str) -> str:
        facts = dict(line.split("\t", 1) for line in _four_letters(self._port, "mntr").splitlines() if "\t" in line)
        return facts[name]


def _four_letters(port: int, word: str) -> str:
    try:
        with socket.create_connection((HOST, port), timeout=0.5) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


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


@functools.cache
def _empty_databases(programs: str) -> str:
    """A folder with a new cluster of databases, made once for all cases."""
    made = tempfile.mkdtemp(prefix="holdfast-postgresql-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    data = os.path.join(made, "data")
    make = [os.path.join(programs, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    done = subprocess.run([*_another_user(made), *make], cwd=made, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"initdb failed: {done.stderr.strip()}")
    return data


def _copy(folder: str, into: str) -> None:
    subprocess.run(["cp", "-a", folder, into], check=True)  # with its owner


def _another_user(folder: str) -> list[str]:
    """What has a command run as nobody, if we are root, as whom a database refuses to run; the folder becomes its."""
    if os.getuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups", "--"]


def _accepts(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a PostgreSQL says that it would let us in; False if it ends instead, or takes too long."""
    startup = b"\x00\x03\x00\x00user\x00postgres\x00\x00"
    patience = time.monotonic() + START_MAX
    while process.poll() is None and time.monotonic() < patience:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=0.25) as probe:
            probe.sendall((len(startup) + 4).to_bytes(4, "big") + startup)
            if probe.recv(1) == b"R":
                return process.poll() is None
        time.sleep(0.002)
    return False


class _MemcachedStats:
    """The command `stats`, over a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=10.0)
        self._stream = self._socket.makefile("rb")

    def commands(self) -> float:
        found = self._stats()
        return float(sum(int(found[name]) for name in _COUNTED))

    def pid(self) -> int:
        return int(self._stats()["pid"])

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _stats(self) -> dict[str, str]:
        self._socket.sendall(b"stats\r\n")
        found = {}
        while (line := self._stream.readline()) not in {b"END\r\n", b""}:
            _, name, value = line.decode().split(maxsplit=2)
            found[name] = value.strip()
        return found


# What counts the commands that are used for locks, meta and classic; `stats` itself is in none of these.
_COUNTED = ("cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], port: int, asked: bytes, answer: bytes) -> bool:
    """Wait until it does; False if it ends instead, or takes too long."""
    patience = time.monotonic() + START_MAX
    while process.poll() is None and time.monotonic() < patience:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=0.25) as probe:
            probe.sendall(asked)
            if answer in probe.recv(4096):
                return process.poll() is None  # or somebody else has the port, and answers
        time.sleep(0.002)
    return False
