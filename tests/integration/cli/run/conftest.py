"""Fixtures: `holdfast run` as a script starts it, commands to run, and the state of processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.threads.client import Client
from tests.support.processes import PATIENCE, eventually

STAMPER = [sys.executable, str(Path(__file__).with_name("stamper.py"))]


class Stamp(NamedTuple):
    at: float
    pid: int
    fence: int


class Stamps:
    """The output of `stamper.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Stamp]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [Stamp(float(at), int(pid), int(fence)) for at, pid, fence in rows]

    def pids(self) -> set[int]:
        return {stamp.pid for stamp in self.read()}

    def wait_for(self, processes: int = 1) -> None:
        eventually(lambda: len(self.pids()) >= processes)

    def last(self) -> float:
        return max(stamp.at for stamp in self.read())


class Runs:
    """`holdfast run` on a private lock file. All processes are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "store" / "locks.db"
        self.url = f"sqlite://{self.file}"
        self.environment = {**os.environ, "HOLDFAST_URL": self.url}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a session of its own, as cron does."""
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "run", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit status, stdout and stderr."""
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, out, errors

    def close(self) -> None:
        for process in self._started:
            for member in _session(process.pid):
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.kill(member, signal.SIGKILL)
            process.communicate()


def _session(session: int) -> list[int]:
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def state_of(pid: int) -> str:
    """Return R, S, T (stopped), Z …; an empty string if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def children(pid: int) -> list[int]:
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            pids.append(int(name))
    return pids


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stamps(tmp_path: Path) -> Stamps:
    return Stamps(tmp_path / "stamps")


@pytest.fixture
def client(runs: Runs) -> Iterator[Client]:
    with Client(runs.url) as made:
        yield made
