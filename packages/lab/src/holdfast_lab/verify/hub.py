"""The connection of a worker to the parent process: the shared resource, and the proxies for its connections.

A request is one JSON line on a Unix socket, and so is its answer. Each thread has a connection of its own, and a forked
child opens new ones.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any, NamedTuple

_connect = socket.socket.connect  # before `interpose` replaces it


class Job(NamedTuple):
    """The configuration of a worker."""

    client: str
    number: int  # different for each worker process of a run
    url: str
    adapters: list[str]
    journal: str
    hub: str
    names: list[str]
    hot: int  # the first names are contended
    ttl: float
    seed: str
    threads: int
    tasks: int
    proxied: bool


class Hub:
    """Sends requests to the parent. Every call returns within milliseconds, also inside a loop of asyncio."""

    def __init__(self, path: str, client: str) -> None:
        self._path = path
        self.client = client
        self._local = threading.local()

    def proxy(self, host: str, port: int) -> int:
        """The local port of the proxy for connections of this worker to this server."""
        return int(self._call({"do": "proxy", "host": host, "port": port})["port"])

    def read(self, lock: str, ticket: int, fence: int | None) -> tuple[bool, int]:
        """Read the resource: whether the fence was accepted, and the value."""
        answer = self._call({"do": "read", "lock": lock, "ticket": ticket, "fence": fence})
        return bool(answer["accepted"]), int(answer["value"])

    def write(self, lock: str, ticket: int, fence: int | None, *, before: int) -> bool:
        """Replace the value that was read before by the ticket: whether the resource accepted it."""
        return bool(
            self._call({"do": "write", "lock": lock, "ticket": ticket, "fence": fence, "before": before})["accepted"]
        )

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        file = getattr(self._local, "file", None)
        if file is None or self._local.pid != os.getpid():
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _connect(sock, self._path)
            file = self._local.file = sock.makefile("rw", encoding="utf-8")
            self._local.pid = os.getpid()
            sock.close()  # the file keeps the connection open
        file.write(json.dumps({"client": self.client, **request}) + "\n")
        file.flush()
        line = file.readline()
        if not line:
            raise OSError("the parent process of this worker has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer
