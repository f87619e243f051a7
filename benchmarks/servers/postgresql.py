"""PostgreSQL."""

from __future__ import annotations

import glob
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from benchmarks.servers.base import HOST, Server, ask

_STARTUP = b"\x00\x03\x00\x00user\x00postgres\x00\x00"


class Postgresql(Server):
    """PostgreSQL of the distribution, whose programs are not on the PATH; commits are not synced to disk."""

    name = "PostgreSQL"
    program = "postgres"
    url = f"postgresql://postgres@{HOST}:{{port}}/postgres"
    version_pattern = r"(\d[\d.]*)"
    refuses_root = True
    end_signal = signal.SIGQUIT  # which its child processes receive too

    def path(self) -> str | None:
        """The newest version."""
        paths = glob.glob("/usr/lib/postgresql/*/bin/postgres")
        newest = max(paths, key=lambda path: float(path.split("/")[4]), default=shutil.which(self.program))
        return os.path.realpath(newest) if newest else None

    def initial_data(self) -> Sequence[str]:
        initdb = os.path.join(os.path.dirname(self.path() or ""), "initdb")
        return (initdb, "-D", "{folder}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def command(self, folder: Path, port: int) -> list[str]:
        settings = (f"listen_addresses={HOST}", f"unix_socket_directories={folder}", "fsync=off", "max_connections=300")
        words = [word for setting in settings for word in ("-c", setting)]
        return [self.path() or self.program, "-D", str(folder / "data"), "-p", str(port), *words]

    def answers(self, port: int) -> bool:
        return ask(port, (len(_STARTUP) + 4).to_bytes(4, "big") + _STARTUP).startswith(b"R")

    def stats(self, url: str) -> None:
        """None, because its counters are updated late."""
