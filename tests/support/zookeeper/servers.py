"""Private ZooKeeper servers, alone or an ensemble: data in a folder, free ports, always reaped.

Start servers from the main thread: they are killed with the *thread* that started them, so that a killed test run
leaves none behind. A server that is missing skips its tests with one line; with CI=true it fails them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kazoo.client import KazooClient

from tests.support.partitions.networks import HERE, Host
from tests.support.processes import PATIENCE, _state, eventually
from tests.support.redis.binaries import missing
from tests.support.redis.servers import free_ports

JARS = Path("/usr/share/java")
TICK = 200  # milliseconds: short, because sessions of tests are short
_JAVA = (
    *("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=*"),
    *("-Dzookeeper.preAllocSize=1024", "-Djava.net.preferIPv4Stack=true", "-Dzookeeper.forceSync=no"),
)


def java() -> str:
    """The java command; the test is skipped if it or ZooKeeper's jars are missing."""
    command = shutil.which("java")
    if command is None or not (JARS / "zookeeper.jar").exists():
        missing("no ZooKeeper on this machine: `make servers` installs it")
    return command


def class_path(*more: str) -> str:
    return ":".join(str(JARS / f"{name}.jar") for name in ("zookeeper", "slf4j-simple", *more))


class Server:
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

    def __init__(
        self,
        folder: Path,
        *,
        number: int = 0,
        peers: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        jars: Sequence[str] = (),
        flags: Sequence[str] = (),
        host: Host = HERE,
    ) -> None:
        """`number` and `peers` (its own server.N lines) are for a member of an ensemble."""
        self.folder = folder
        self.number = number
        self.host = host
        self.port = free_ports(1)[0]
        self._jars, self._flags = jars, flags
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True, exist_ok=True)
        written: dict[str, object] = {
            "tickTime": TICK,
            "initLimit": 25,
            "syncLimit": 10,
            "dataDir": folder / "data",
            "clientPort": self.port,
            "clientPortAddress": host.address,
            "admin.enableServer": "false",
            "minSessionTimeout": 2 * TICK,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            **(settings or {}),
        }
        lines = [f"{name}={value}" for name, value in written.items()]
        (folder / "zoo.cfg").write_text("\n".join([*lines, *peers, ""]))
        if number:
            (folder / "data" / "myid").write_text(str(number))

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Returns when it serves."""
        self.spawn()
        eventually(lambda: bool(self.mode()))

    def spawn(self) -> None:
        """Start the process; several can be spawned before the first is awaited."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would die with this thread"
        setpriv = shutil.which("setpriv")
        command = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        command += [*self.host.under, java(), *_JAVA, *self._flags, "-cp", class_path(*self._jars)]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def mode(self) -> str:
        """standalone, leader or follower; "" while it does not serve."""
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
        for line in self.word("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def word(self, word: str) -> str:
        """The answer to one of its four-letter words; "" if there is none."""
        try:
            with socket.create_connection((self.host.address, self.port), timeout=0.25) as connection:
                connection.sendall(word.encode())
                connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def counted(self, fact: str) -> int:
        """A number of `mntr`."""
        facts = dict(line.split("\t", 1) for line in self.word("mntr").splitlines() if "\t" in line)
        return int(float(facts[fact]))

    def kill(self) -> None:
        """SIGKILL; returns when it is dead and reaped."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def stop(self) -> None:
        """SIGSTOP; returns when the process is stopped. Connections stay open, and get no answers."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start the server, and end it after the block."""
    try:
        server.start()
        yield server
    finally:
        server.end()


@contextlib.contextmanager
def kazoo(hosts: str, *, timeout: float = 10.0) -> Iterator[KazooClient]:
    """A kazoo client, for the requests of other programs."""
    client = KazooClient(hosts, timeout=timeout)
    client.start(timeout=PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()
