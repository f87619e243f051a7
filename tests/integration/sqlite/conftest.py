"""A lock file of its own for every test, worker processes on it, and an observer in the test's own process."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.processes import WORKER, WorkerPool, eventually

HERE = os.path.dirname(__file__)

# Processes are watched by pidfd and /proc here.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


class Store:
    """A lock file, and what can be seen of it from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite://{path}"
        self.sessions = Path(f"{path}-sessions")

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Ask or change the file without holdfast."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=5)) as connection:
            return connection.execute(sql).fetchall()

    @property
    def tickets(self) -> int:
        (count,) = self.query("SELECT count(*) FROM tickets WHERE name <> ''")[0]
        assert isinstance(count, int)
        return count


class Observer:
    """Sees who holds a lock and who waits for it."""

    def __init__(self, client: holdfast.Client) -> None:
        self._client = client

    def holders(self, lock: str) -> list[int]:
        """Process ids."""
        return [holder.pid for holder in self._client.inspect(lock).holders]

    def waiters(self, lock: str) -> list[int]:
        """Process ids, in the order of the queue."""
        return [waiter.pid for waiter in self._client.inspect(lock).waiters]

    def await_queue(self, lock: str, *pids: int) -> None:
        """Return when exactly these wait, in this order."""
        eventually(lambda: self.waiters(lock) == list(pids))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "locks.db")


@pytest.fixture
def observer(store: Store) -> Iterator[Observer]:
    with holdfast.Client(store.url) as client:
        yield Observer(client)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(WORKER) as pool:
        yield pool


@pytest.fixture
def aio_crew() -> Iterator[WorkerPool]:
    with WorkerPool(os.path.join(HERE, "worker_aio.py")) as pool:
        yield pool
