"""ZooKeeper."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Stats, connect, ended, pid_on, start, version_of

_JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
_PACKAGE = "org.apache.zookeeper"


class Zookeeper:
    """One ZooKeeper server. Its log is not synced to disk."""

    name = "ZooKeeper"
    program = "java"

    def version(self) -> str | None:
        if shutil.which(self.program) is None or not all(map(os.path.exists, _JARS)):
            return None
        said = f"{_PACKAGE}.version.VersionInfoMain"
        return version_of([self.program, "-cp", ":".join(_JARS), said], r"version (\d[\d.]*)")

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        process, port = start(
            self.name,
            lambda port: self._command(folder, port),
            lambda port: "Mode:" in _four_letters(port, "srvr"),
            cores=cores,
            log=os.path.join(folder, "server.log"),
        )
        with ended(process):
            yield f"zookeeper://{HOST}:{port}/benchmark"

    def stats(self, url: str) -> Stats:
        return _ZookeeperStats(url)

    def _command(self, folder: str, port: int) -> list[str]:
        settings = os.path.join(folder, "zoo.cfg")
        with open(settings, "w") as written:
            written.write(f"tickTime=2000\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress={HOST}\n")
            written.write("admin.enableServer=false\nmaxClientCnxns=0\n")
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true"]
        flags += ["-Dzookeeper.4lw.commands.whitelist=*", "-Dzookeeper.preAllocSize=4096"]
        main = f"{_PACKAGE}.server.quorum.QuorumPeerMain"
        return [self.program, *flags, "-cp", ":".join(_JARS), main, settings]


class _ZookeeperStats:
    """Its four-letter commands, each on a new connection."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port or 0
        self._request = 0

    def commands(self) -> float:
        # All packets received: a transaction counts as one, and so does each of our own commands, including this one.
        self._request += 1
        return float(self._fact("zk_packets_received")) - self._request

    def pid(self) -> int:
        return pid_on(self._port)

    def close(self) -> None:
        """Nothing to close."""

    def _fact(self, name: str) -> str:
        facts = dict(
            line.split("\t", 1) for line in _four_letters(self._port, "mntr", timeout=10.0).splitlines() if "\t" in line
        )
        return facts[name]


def _four_letters(port: int, word: str, *, timeout: float = 0.5) -> str:
    with connect(port, timeout) as connection:
        connection.sendall(word.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
