"""ZooKeeper."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Server, Stats, connect, pid_on, version_of

_JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
_PACKAGE = "org.apache.zookeeper"


class Zookeeper(Server):
    """One ZooKeeper server. Its log is not synced to disk."""

    name = "ZooKeeper"
    program = "java"
    url = f"zookeeper://{HOST}:{{port}}/benchmark"

    def version(self) -> str | None:
        if self.path() is None or not all(map(os.path.exists, _JARS)):
            return None
        command = (self.program, "-cp", ":".join(_JARS), f"{_PACKAGE}.version.VersionInfoMain")
        return version_of(command, r"version (\d[\d.]*)")

    def answers(self, port: int) -> bool:
        return "Mode:" in _four_letters(port, "srvr")

    def stats(self, url: str) -> Stats:
        return _ZookeeperStats(url)

    def command(self, folder: Path, port: int) -> list[str]:
        settings = folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=2000\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress={HOST}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\n"
        )
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no", "-Djava.net.preferIPv4Stack=true"]
        flags += ["-Dzookeeper.4lw.commands.whitelist=*", "-Dzookeeper.preAllocSize=4096"]
        main = f"{_PACKAGE}.server.quorum.QuorumPeerMain"
        return [self.program, *flags, "-cp", ":".join(_JARS), main, str(settings)]


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
