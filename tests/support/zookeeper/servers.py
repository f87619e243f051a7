"""ZooKeeper servers, and the requests that tests send to them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kazoo.client import KazooClient

from tests.support.processes import PATIENCE
from tests.support.server_process import HERE, Host, ServerProcess, missing, program

JARS = Path("/usr/share/java")
TICK = 200  # milliseconds: short, because sessions of tests are short
_JAVA = (
    *("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=*"),
    *("-Dzookeeper.preAllocSize=1024", "-Djava.net.preferIPv4Stack=true", "-Dzookeeper.forceSync=no"),
)


def java() -> str:
    """The java command; the test is skipped if it or ZooKeeper's jars are missing."""
    if not (JARS / "zookeeper.jar").exists():
        missing("no ZooKeeper on this machine: `make servers` installs it")
    return program("java", package="ZooKeeper")


def class_path(*more: str) -> str:
    return ":".join(str(JARS / f"{name}.jar") for name in ("zookeeper", "slf4j-simple", *more))


class Server(ServerProcess):
    """One server, alone or a member of an ensemble."""

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
        super().__init__(folder, host=host)
        self.number = number
        self._jars, self._flags = jars, flags
        (folder / "data").mkdir(parents=True, exist_ok=True)
        configuration: dict[str, object] = {
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
        lines = [f"{name}={value}" for name, value in configuration.items()]
        (folder / "zoo.cfg").write_text("\n".join([*lines, *peers, ""]))
        if number:
            (folder / "data" / "myid").write_text(str(number))

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}"

    def command(self) -> list[str]:
        words = [java(), *_JAVA, *self._flags, "-cp", class_path(*self._jars)]
        return [*words, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]

    def answers(self) -> bool:
        return bool(self.mode())

    def mode(self) -> str:
        """standalone, leader or follower; "" while it does not serve."""
        self.assert_running()
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
        """A value of the command `mntr`."""
        facts = dict(line.split("\t", 1) for line in self.word("mntr").splitlines() if "\t" in line)
        return int(float(facts[fact]))


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
