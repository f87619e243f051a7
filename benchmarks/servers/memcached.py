"""memcached."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Server, Stats, connect

# The counters of the commands that locks use, meta and classic; `stats` itself is not counted.
_COUNTED = ("cmd_get", "cmd_set", "cmd_touch", "delete_hits", "delete_misses")


class Memcached(Server):
    """memcached with its default options."""

    name = "memcached"
    program = "memcached"
    url = f"memcached://{HOST}:{{port}}"
    request, reply, version_pattern = b"mn\r\n", b"MN\r\n", r"memcached (\S+)"

    def stats(self, url: str) -> Stats:
        return _MemcachedStats(url)

    def command(self, folder: Path, port: int) -> list[str]:
        user = pwd.getpwuid(os.getuid()).pw_name  # required to run as root
        return [self.program, "-l", HOST, "-p", str(port), "-U", "0", "-u", user]


class _MemcachedStats:
    """The command `stats`, over a separate connection."""

    def __init__(self, url: str) -> None:
        self._socket = connect(urlsplit(url).port or 0, 10.0)
        self._stream = self._socket.makefile("rb")

    def commands(self) -> float:
        stats = self._stats()
        return float(sum(int(stats[name]) for name in _COUNTED))

    def pid(self) -> int:
        return int(self._stats()["pid"])

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _stats(self) -> dict[str, str]:
        self._socket.sendall(b"stats\r\n")
        stats = {}
        while (line := self._stream.readline()) not in {b"END\r\n", b""}:
            _, name, value = line.decode().split(maxsplit=2)
            stats[name] = value.strip()
        return stats
