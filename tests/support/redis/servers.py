"""One Redis or Valkey server: started on a free loopback port, stopped, killed, restarted, always reaped.

Start servers from the main thread: they are killed with the *thread* that started them, so that a killed test run
leaves no server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE, _state, eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.resp import Connection, ServerError, Word, facts


class Server:
    """A server process and its folder, which outlives the process: `start` again for a restart with its data."""

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
        folder.mkdir(parents=True, exist_ok=True)
        self.binary = binary
        self.folder = folder
        self.port = free_ports(1)[0] if port is None else port
        self.options = list(options)
        self._environment = dict(environment or {})
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # ── life and death ───────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Returns when it answers, errors such as NOAUTH included."""
        self.spawn()
        self.await_answer()

    def spawn(self) -> None:
        """Start the process; several can be spawned before the first is awaited."""
        assert self._process is None
        assert threading.current_thread() is threading.main_thread(), "it would die with this thread"
        command = [self.binary.path, *([str(self._settings)] if self._settings else [])]
        if self._settings is None:
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
            command += ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*_with_parent(), *command, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )

    def await_answer(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended at once:\n{self.log()}"
            try:
                return bool(self.call("PING") == "PONG")
            except ServerError as error:
                return error.code in ("NOAUTH", "NOPERM", "DENIED", "MISCONF", "MASTERDOWN")
            except OSError:
                return False

        eventually(answers)

    def kill(self) -> None:
        """SIGKILL; returns when the process is reaped. Unwritten data is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still. Connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state(self.pid) == "T")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Killed, and started with what data it had written, on the same port."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Take the data away from a server that is not running."""
        assert self._process is None
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.suffix in (".rdb", ".aof"):
                entry.unlink()

    def end(self) -> None:
        """Dead or alive: nothing of it is left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Look until `condition(self)` holds, answers that do not come at all not counted."""

        def holds() -> bool:
            with contextlib.suppress(OSError, ServerError):
                return bool(condition(self))
            return False

        eventually(holds)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, started, for as long as the block lasts."""
    try:
        server.start()
        yield server
    finally:
        server.end()


def free_ports(number: int) -> list[int]:
    """Distinct free ports, reserved until their servers are up and during restarts.

    They stay bound here without being listened to. A server, which sets SO_REUSEADDR, may bind them too; the kernel
    gives them neither to a connection of ours nor to another test run that asks for a free one.
    """
    fresh = [socket.socket() for _ in range(number)]
    for one in fresh:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    _kept.extend(fresh)
    while len(_kept) > _KEPT_MAX:
        _kept.popleft().close()
    return [one.getsockname()[1] for one in fresh]


_kept: deque[socket.socket] = deque()
_KEPT_MAX = 300  # several times what one test asks for


def _with_parent() -> list[str]:
    """A command prefix that kills the process with the thread that started it, if the system supports it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
