"""etcd."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, OnePort, Stats, connect, free_port, pid_on

_MEMORY = "/dev/shm"  # noqa: S108 (a folder of its own is made there)


class Etcd(OnePort):
    """One etcd, with its data in memory if possible, because the disk is not measured."""

    name = "etcd"
    program = "etcd"
    _url = f"etcd://{HOST}:{{port}}"
    _request, _reply, _version_pattern = b"GET /health HTTP/1.0\r\n\r\n", b'"health":"true"', r"etcd Version: (\S+)"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        memory = _MEMORY if os.path.isdir(_MEMORY) else folder
        with tempfile.TemporaryDirectory(dir=memory) as own, super().run(own, cores) as url:
            yield url

    def stats(self, url: str) -> Stats:
        return _EtcdStats(url)

    def _command(self, folder: str, port: int) -> list[str]:
        client, between = f"http://{HOST}:{port}", f"http://{HOST}:{free_port()}"
        return [
            *(self.program, "--name", "n0", "--data-dir", os.path.join(folder, str(port))),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"),
            *("--listen-peer-urls", between, "--initial-advertise-peer-urls", between),
            *("--initial-cluster", f"n0={between}", "--heartbeat-interval", "20", "--election-timeout", "200"),
        ]


class _EtcdStats:
    """Its metrics, read over a new connection each time. Reading them is not counted."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port or 0

    def commands(self) -> float:
        # A transaction counts as one, and so does each watch of a stream.
        lines = self._metrics().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("grpc_server_msg_received_total")
        )

    def pid(self) -> int:
        return pid_on(self._port)

    def close(self) -> None:
        """Nothing to close."""

    def _metrics(self) -> str:
        with connect(self._port, 10.0) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
