"""PostgreSQL."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
from collections.abc import Iterator, Sequence

from benchmarks.servers.base import HOST, ask, start, version_of
from benchmarks.servers.databases import DATA, another_user, copied

_STARTUP = b"\x00\x03\x00\x00user\x00postgres\x00\x00"


class Postgresql:
    """PostgreSQL of the distribution, whose programs are not on the PATH; commits are not synced to disk."""

    name = "PostgreSQL"
    program = "postgres"

    def version(self) -> str | None:
        programs = _programs()
        return None if programs is None else version_of([f"{programs}/{self.program}", "--version"], r"(\d[\d.]*)")

    @contextlib.contextmanager
    def run(self, folder: str, cores: Sequence[int]) -> Iterator[str]:
        with copied("postgresql", _make) as own:
            process, port = start(
                self.program,
                lambda port: self._command(own, port),
                _lets_us_in,
                cores=cores,
                log=os.path.join(folder, "server.log"),
            )
            try:
                yield f"postgresql://postgres@{HOST}:{port}/postgres"
            finally:
                process.send_signal(signal.SIGQUIT)  # which its child processes receive too
                process.wait()

    def stats(self, url: str) -> None:
        """None, because its counters are updated late."""

    def _command(self, own: str, port: int) -> list[str]:
        settings = (f"listen_addresses={HOST}", f"unix_socket_directories={own}", "fsync=off", "max_connections=300")
        words = [word for setting in settings for word in ("-c", setting)]
        program = f"{_programs()}/{self.program}"
        return [*another_user(own), program, "-D", os.path.join(own, DATA), "-p", str(port), *words]


def _programs() -> str | None:
    """Return the folder with the newest version."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    newest = max(found, key=lambda path: float(path.split("/")[4]), default=shutil.which(Postgresql.program))
    return os.path.dirname(os.path.realpath(newest)) if newest else None


def _make(data: str) -> list[str]:
    return [f"{_programs()}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]


def _lets_us_in(port: int) -> bool:
    return ask(port, (len(_STARTUP) + 4).to_bytes(4, "big") + _STARTUP).startswith(b"R")
