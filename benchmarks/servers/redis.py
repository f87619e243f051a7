"""redis-server: one, or several."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Server, Stats, connect


class Redis(Server):
    """redis-server, without persistence."""

    name = "Redis"
    program = "redis-server"
    url = f"redis://{HOST}:{{port}}/0"
    request, reply, version_pattern = b"PING\r\n", b"+PONG\r\n", r"v=(\S+)"

    def stats(self, url: str) -> Stats:
        return _RedisStats(url)

    def command(self, folder: Path, port: int) -> list[str]:
        return [
            *(self.program, "--port", str(port), "--bind", HOST, "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
        ]


class RedisNodes(Redis):
    """Several independent servers; the URL names all: redlock://h1:1,h2:2,h3:3."""

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
        raise NotImplementedError  # not used by any measure: several servers have no common counter


class _RedisStats:
    """INFO, over a separate connection."""

    def __init__(self, url: str) -> None:
        self._socket = connect(urlsplit(url).port or 0, 10.0)
        self._stream = self._socket.makefile("rb")
        self._request = 0

    def commands(self) -> float:
        # INFO counts itself after the answer, so the answer includes earlier calls and not this one.
        commands = float(self._info("stats", "total_commands_processed")) - self._request
        self._request += 1
        return commands

    def pid(self) -> int:
        pid = int(self._info("server", "process_id"))
        self._request += 1
        return pid

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _info(self, section: str, key: str) -> str:
        self._socket.sendall(f"INFO {section}\r\n".encode())
        size = int(self._stream.readline()[1:])
        text = self._stream.read(size + 2).decode()
        match = re.search(rf"^{key}:(\S+)", text, re.MULTILINE)
        if match is None:
            raise RuntimeError(f"INFO {section} has no {key}")
        return match[1]
