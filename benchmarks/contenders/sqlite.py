"""Locks in an SQLite file: holdfast's embedded default beside the least that such a lock can cost."""

from __future__ import annotations

import os
import sqlite3
from contextlib import AbstractContextManager
from types import TracebackType

from benchmarks.adapters import Holdfast, HoldfastAsync
from benchmarks.contender import Arena, Contender


def _url(folder: str) -> str:
    return f"sqlite://{folder}/locks.db"


class TwoStatements:
    """A row is inserted and deleted, in two transactions: a lock without queue, ttl, fence or wake-up.

    WAL and synchronous=NORMAL, as with holdfast, so that both sync in the same way.
    """

    def __init__(self, folder: str) -> None:
        self._connection = sqlite3.connect(os.path.join(folder, "two.db"), isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY) WITHOUT ROWID")

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Row(self._connection, name)

    def close(self) -> None:
        self._connection.close()


class _Row:
    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._execute = connection.execute
        self._name = (name,)

    def __enter__(self) -> None:
        self._execute("INSERT INTO locks VALUES (?)", self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._execute("DELETE FROM locks WHERE name = ?", self._name)


_WAL = "WAL, synced at checkpoints"

CONTENDERS = [
    Contender(
        name="holdfast sqlite",
        arena=Arena.MACHINE,
        threads=lambda folder: Holdfast(_url(folder)),
        ours=True,
        package="holdfast",
        imports="import holdfast",
        first_use="""
client = holdfast.Client(f'sqlite://{sys.argv[1]}/a.db')
with client.lock('a'): pass
client.close()
""",
        waits="is woken",
        order="FIFO",
        writes=_WAL,
        has_ttl=True,
        has_fence=True,
    ),
    Contender(
        name="holdfast sqlite asyncio",
        arena=Arena.MACHINE,
        tasks=lambda folder: HoldfastAsync(_url(folder)),
        ours=True,
        package="holdfast",
        imports="import asyncio, holdfast",
        first_use="""
async def main():
    async with holdfast.AsyncClient(f'sqlite://{sys.argv[1]}/a.db') as client:
        async with client.lock('a'): pass
asyncio.run(main())
""",
        waits="is woken",
        order="FIFO",
        writes=_WAL,
        has_ttl=True,
        has_fence=True,
    ),
    Contender(
        name="two SQLite statements",
        is_floor=True,
        arena=Arena.MACHINE,
        threads=TwoStatements,
        imports="import sqlite3",
        first_use="""
connection = sqlite3.connect(sys.argv[1] + '/a.db', isolation_level=None)
connection.execute('PRAGMA journal_mode=WAL')
connection.execute('PRAGMA synchronous=NORMAL')
connection.execute('CREATE TABLE locks (name TEXT PRIMARY KEY) WITHOUT ROWID')
connection.execute("INSERT INTO locks VALUES ('a')")
connection.execute("DELETE FROM locks WHERE name = 'a'")
connection.close()
""",
        waits=None,
        writes=_WAL,
        baseline_of=("uncontended",),
    ),
]
