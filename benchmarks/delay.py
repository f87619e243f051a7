"""A proxy that delays requests to servers; replies are not delayed.

    python -m benchmarks.delay 0.005 6379 6380

forwards to the servers on these ports of this machine, and first prints its own ports in one line. Requests do not wait
for each other: a delay is not a queue.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.servers import HOST, ServerFailed, last_line, pinned

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PORT = rf"{re.escape(HOST)}:(\d+)"
CHUNK = 1 << 16  # bytes


@contextlib.contextmanager
def delayed(url: str, seconds: float, folder: str, cores: Sequence[int]) -> Iterator[str]:
    """Delay the servers of a URL during the block. Return the URL with the ports of the proxy.

    Raises:
        ServerFailed: the proxy did not start.
    """
    if not seconds:
        yield url
        return
    ports = re.findall(PORT, url)
    log, command = Path(folder, "delay.log"), [sys.executable, "-m", "benchmarks.delay", str(seconds), *ports]
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [*pinned(cores), *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the runner
        )
    try:
        assert process.stdout is not None
        own = process.stdout.readline().decode().split()
        if len(own) != len(ports):
            raise ServerFailed(f"the delay did not start: {last_line(log.read_text(errors='replace'))}")
        longer = dict(zip(ports, own, strict=True))
        yield re.sub(PORT, lambda match: f"{HOST}:{longer[match[1]]}", url)
    finally:
        process.kill()
        process.communicate()


class DelayingProxy:
    """Forwards all connections on one thread, because a process for each would use too much CPU."""

    def __init__(self, seconds: float, ports: Sequence[int]) -> None:
        self._seconds = seconds
        self._listeners = {socket.create_server((HOST, 0)): port for port in ports}
        self._servers: dict[socket.socket, socket.socket] = {}  # by their clients
        self._clients: dict[socket.socket, socket.socket] = {}  # by their servers
        # The delay is constant, so the first data received is due first.
        self._delayed: deque[tuple[float, socket.socket, bytes]] = deque()

    @property
    def ports(self) -> list[int]:
        """Its own ports, in the order of the servers."""
        return [listener.getsockname()[1] for listener in self._listeners]

    def serve(self) -> None:
        """Forward until killed."""
        while True:
            wait = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else None
            # select(), because epoll rounds up to milliseconds.
            ready, _, _ = select.select([*self._listeners, *self._servers, *self._clients], [], [], wait)
            for ready_socket in ready:
                if ready_socket in self._listeners:
                    self._open(ready_socket)
                else:
                    self._read(ready_socket)
            while self._delayed and self._delayed[0][0] <= time.monotonic():
                _, server, data = self._delayed.popleft()
                self._send(server, data)

    def _open(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        server = socket.create_connection((HOST, self._listeners[listener]))
        for connection in (client, server):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._servers[client], self._clients[server] = server, client

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(CHUNK)
        except OSError:  # closed in this round, or reset
            data = b""
        if not data:
            self._close(connection)
        elif connection in self._servers:
            self._delayed.append((time.monotonic() + self._seconds, self._servers[connection], data))
        else:
            self._send(self._clients[connection], data)

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
        except OSError:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        """Close both ends; delayed data is lost."""
        client = self._clients.get(connection, connection)
        server = self._servers.pop(client, None)
        if server is not None:
            del self._clients[server]
            server.close()
        client.close()


def main(seconds: str, *ports: str) -> None:
    """Run the proxy until killed."""
    proxy = DelayingProxy(float(seconds), [int(port) for port in ports])
    print(*proxy.ports, flush=True)
    proxy.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
