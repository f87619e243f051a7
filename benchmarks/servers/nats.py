"""NATS with JetStream."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.servers.base import HOST, Server
from tests.support.server_process import folder_in_memory

_ROOT = Path(__file__).parents[2]
_FOLDERS = (Path(sys.prefix), _ROOT / ".venv")  # `make servers` installs it into .venv


class Nats(Server):
    """One NATS server, with its data in memory if possible, because the disk is not measured."""

    name = "NATS"
    program = "nats-server"
    url = f"nats://{HOST}:{{port}}"
    request, reply, version_pattern = b"", b'"jetstream":true', r"v(\d[\d.]*)"

    def path(self) -> str | None:
        """The server of tests/servers.txt: that of a distribution may be too old."""
        paths = [str(folder / "servers" / "bin" / self.program) for folder in _FOLDERS]
        return next((path for path in paths if os.access(path, os.X_OK)), None)

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        with folder_in_memory() as own, super().run(str(own), cores) as url:
            yield url

    def command(self, folder: Path, port: int) -> list[str]:
        return [self.path() or self.program, "-a", HOST, "-p", str(port), "-js", "-sd", str(folder / "data")]

    def stats(self, url: str) -> None:
        """None, because its counters are on another port, which the URL does not name."""
