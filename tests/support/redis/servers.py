"""One Redis or Valkey server, and the requests that tests send to it."""

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
    """A server without persistence, unless its options enable it."""

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
        """`options` are for its command line, such as ("--appendonly", "yes"); `settings` is a configuration file."""
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
        """Whether it answers; errors such as NOAUTH are answers too."""
        try:
            return bool(self.call("PING") == "PONG")
        except ServerError as error:
            return error.code in ("NOAUTH", "NOPERM", "DENIED", "MISCONF", "MASTERDOWN")

    def wipe(self) -> None:
        """Delete the data of a server that does not run."""
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
        """CLIENT LIST without the connection of this command."""
        listed = [
            dict(fact.split("=", 1) for fact in line.split()) for line in self.call("CLIENT", "LIST").splitlines()
        ]
        return [client for client in listed if not client["cmd"].startswith("client")]

    def subscribers(self) -> list[dict[str, str]]:
        """The clients that have a subscription."""
        return [
            client for client in self.clients() if any(int(client.get(kind, 0)) for kind in ("sub", "psub", "ssub"))
        ]

    def commands_run(self) -> int:
        """The number of commands since its start, those inside scripts included, INFO excluded."""
        calls = 0
        for name, fact in self.info("commandstats").items():
            if name != "cmdstat_info":
                calls += int(fact.partition("calls=")[2].partition(",")[0])
        return calls

    def await_true(self, condition: Any) -> None:
        """Poll until `condition(self)` holds; an error counts as false."""

        def holds() -> bool:
            with contextlib.suppress(OSError, ServerError):
                return bool(condition(self))
            return False

        eventually(holds)
