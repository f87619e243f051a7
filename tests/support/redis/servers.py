"""One Redis or Valkey server, and what tests ask it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.resp import Connection, ServerError, Word, facts
from tests.support.server_process import ServerProcess


class Server(ServerProcess):
    """A server without persistence, unless its options say otherwise."""

    def __init__(
        self,
        binary: Binary,
        folder: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        settings: Path | None = None,
    ) -> None:
        """`options` are of its command line, such as ("--appendonly", "yes"); `settings` is a file with more."""
        super().__init__(folder, port=port, options=options, environment=environment)
        self.binary = binary
        self._settings = settings

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def command(self) -> list[str]:
        if self._settings is not None:
            return [self.binary.path, str(self._settings)]
        words = [self.binary.path, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*words, "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]

    def answers(self) -> bool:
        """Errors such as NOAUTH are answers too."""
        try:
            return bool(self.call("PING") == "PONG")
        except ServerError as error:
            return error.code in ("NOAUTH", "NOPERM", "DENIED", "MISCONF", "MASTERDOWN")

    def wipe(self) -> None:
        """Take the data away from a server that is not running."""
        assert self._process is None
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.suffix in (".rdb", ".aof"):
                entry.unlink()

    def connect(self, *, timeout: float = 5.0) -> Connection:
        return Connection(self.port, timeout=timeout)

    def call(self, *words: Word) -> Any:
        """One command on a connection of its own."""
        with self.connect() as connection:
            return connection.call(*words)

    def info(self, section: str) -> dict[str, str]:
        return facts(self.call("INFO", section))

    def all_keys(self) -> set[str]:
        """All keys of database 0."""
        return set(self.call("KEYS", "*"))

    def clients(self) -> list[dict[str, str]]:
        """CLIENT LIST without the connection that asks."""
        listed = [
            dict(fact.split("=", 1) for fact in line.split()) for line in self.call("CLIENT", "LIST").splitlines()
        ]
        return [client for client in listed if not client["cmd"].startswith("client")]

    def subscribers(self) -> list[dict[str, str]]:
        """The connections among them that are subscribed to something."""
        return [
            client for client in self.clients() if any(int(client.get(kind, 0)) for kind in ("sub", "psub", "ssub"))
        ]

    def commands_run(self) -> int:
        """How many commands it has run since it started, those inside scripts included, this one's kind left out."""
        calls = 0
        for name, fact in self.info("commandstats").items():
            if name != "cmdstat_info":
                calls += int(fact.partition("calls=")[2].partition(",")[0])
        return calls

    def await_true(self, condition: Any) -> None:
        """Poll until `condition(self)` holds; errors count as no."""

        def holds() -> bool:
            with contextlib.suppress(OSError, ServerError):
                return bool(condition(self))
            return False

        eventually(holds)
