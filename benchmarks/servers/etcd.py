"""etcd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers.base import HOST, Server, Stats, connect, pid_on
from tests.support.server_process import folder_in_memory, free_ports


class Etcd(Server):
    """One etcd, with its data in memory if possible, because the disk is not measured."""

    name = "etcd"
    program = "etcd"
    url = f"etcd://{HOST}:{{port}}"
    request, reply, version_pattern = b"GET /health HTTP/1.0\r\n\r\n", b'"health":"true"', r"etcd Version: (\S+)"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        with folder_in_memory() as own, super().run(str(own), cores) as url:
            yield url

    def stats(self, url: str) -> Stats:
        return _EtcdStats(url)

    def command(self, folder: Path, port: int) -> list[str]:
        client, between = f"http://{HOST}:{port}", f"http://{HOST}:{free_ports(1)[0]}"
        return [
            *(self.program, "--name", "n0", "--data-dir", str(folder / "data")),
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
