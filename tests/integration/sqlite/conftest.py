"""A separate lock file for every test, worker processes that use it, and an observer in the process of the test."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.processes import WorkerPool, eventually

HERE = os.path.dirname(__file__)

# These tests use pidfd and /proc.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


class Store:
    """A lock file, and access to its contents without holdfast."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite://{path}"
        self.sessions = Path(f"{path}-sessions")

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Query or change the file without holdfast."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=5)) as connection:
            return connection.execute(sql).fetchall()

    @property
    def tickets(self) -> int:
        (count,) = self.query("SELECT count(*) FROM tickets WHERE name <> ''")[0]
        assert isinstance(count, int)
        return count


class Observer:
    """Reports the holders and waiters of a lock."""

    def __init__(self, client: holdfast.Client) -> None:
        self._client = client

    def holders(self, lock: str) -> list[int]:
        """The process ids of the holders."""
        return [holder.pid for holder in self._client.inspect(lock).holders]

    def waiters(self, lock: str) -> list[int]:
        """The process ids of the waiters, in the order of the queue."""
        return [waiter.pid for waiter in self._client.inspect(lock).waiters]

    def await_queue(self, lock: str, *pids: int) -> None:
        """Return when exactly these processes wait, in this order."""
        eventually(lambda: self.waiters(lock) == list(pids))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "locks.db")


@pytest.fixture
def observer(store: Store) -> Iterator[Observer]:
    with holdfast.Client(store.url) as client:
        yield Observer(client)


@pytest.fixture
def aio_pool() -> Iterator[WorkerPool]:
    with WorkerPool(os.path.join(HERE, "worker_aio.py")) as pool:
        yield pool
