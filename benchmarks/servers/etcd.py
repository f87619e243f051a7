"""etcd."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence

from benchmarks.servers.base import HOST, OnePort, Stats, free_port

_MEMORY = "/dev/shm"  # noqa: S108 (a folder of its own is made there)


class Etcd(OnePort):
    """One etcd. It keeps its data in memory where there is such a folder: it is not the disk that is measured."""

    name = "etcd"
    program = "etcd"
    _url = f"etcd://{HOST}:{{port}}"
    _asked, _answer, _shown = b"GET /health HTTP/1.0\r\n\r\n", b'"health":"true"', r"etcd Version: (\S+)"

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        memory = _MEMORY if os.path.isdir(_MEMORY) else folder
        with tempfile.TemporaryDirectory(dir=memory) as own, super().run(own, cores) as url:
            yield url

    def stats(self, url: str) -> Stats:
        raise NotImplementedError  # tests/integration/etcd/test_crowds.py counts

    def _command(self, folder: str, port: int) -> list[str]:
        client, between = f"http://{HOST}:{port}", f"http://{HOST}:{free_port()}"
        return [
            *(self.program, "--name", "n0", "--data-dir", os.path.join(folder, str(port))),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"),
            *("--listen-peer-urls", between, "--initial-advertise-peer-urls", between),
            *("--initial-cluster", f"n0={between}", "--heartbeat-interval", "20", "--election-timeout", "200"),
        ]
