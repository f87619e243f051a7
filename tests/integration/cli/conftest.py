"""Fixtures: the command line on a private store, and processes that use locks in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast_lab.conformance.forked import ForkedProcess
from tests.support.commands import Result
from tests.support.processes import PATIENCE, Worker, WorkerPool, eventually
from tests.support.terminals import OnTerminal

HOLDFAST = [sys.executable, "-m", "holdfast"]
HOLDER = str(Path(__file__).with_name("holder.py"))
PROGRAM = str(Path(__file__).with_name("program.py"))


class CliStore:
    """A store, the environment that names it, and a client to inspect it without the command line."""

    def __init__(self, folder: Path, client: holdfast.Client) -> None:
        self.path = folder / "locks.db"
        self.url = f"sqlite://{self.path}"
        self.client = client
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")},
            "HOLDFAST_URL": self.url,
            "PYTHONIOENCODING": "utf-8",
            "PYTHONUTF8": "1",
            "TERM": "xterm",
            "TZ": "UTC",
        }

    def run(self, *arguments: str, **more: str) -> Result:
        """Run a command without a terminal; `more` is added to its environment.

        It runs in a forked process, which does not import holdfast again, unless `more` is for Python itself.
        """
        if not any(name.startswith(("PYTHON", "LC_", "LANG", "PATH")) for name in more):
            return self._run_forked(arguments, more)
        process = self.start(*arguments, **more)
        out, errors = process.communicate(timeout=PATIENCE)
        return Result(process.returncode, out, errors)

    def _run_forked(self, arguments: Sequence[str], more: Mapping[str, str]) -> Result:
        with (
            open(os.devnull, "rb") as no_input,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as errors,
        ):
            files = (no_input.fileno(), out.fileno(), errors.fileno())
            process = ForkedProcess(PROGRAM, arguments, files, (), {**self.environment, **more})
            try:
                status = process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
            texts = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in (out, errors)]
            return Result(status, *texts)

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*HOLDFAST, *arguments],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def fences(self, lock: str) -> list[int]:
        return [holder.fence for holder in self.client.inspect(lock).holders if holder.fence is not None]

    def await_waiters(self, lock: str, number: int) -> None:
        eventually(lambda: len(self.client.inspect(lock).waiters) == number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CliStore]:
    with holdfast.Client(f"sqlite://{tmp_path}/locks.db") as client:
        with client.lock("any"):  # creates the store, which reading commands do not
            pass
        yield CliStore(tmp_path, client)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(HOLDER) as pool:
        yield pool


@pytest.fixture
def holder(pool: WorkerPool, store: CliStore) -> Worker:
    return pool.start(store.url)


StartOnTerminal = Callable[..., OnTerminal]


@pytest.fixture
def start_on_terminal(store: CliStore) -> Iterator[StartOnTerminal]:
    """Start a command on a terminal: `start_on_terminal("watch", columns=40)`."""
    started: list[OnTerminal] = []

    def start(*arguments: str, columns: int = 80, lines: int = 24, **more: str) -> OnTerminal:
        environment = {**store.environment, **more}
        started.append(OnTerminal([*HOLDFAST, *arguments], environment, columns=columns, lines=lines))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()
