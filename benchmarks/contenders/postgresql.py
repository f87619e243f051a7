"""Locks in one PostgreSQL: holdfast beside the Python libraries that have one, and beside two bare statements."""

from __future__ import annotations

import contextlib
import uuid
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Postgresql

_CONNECTIONS_MAX = 100


class TwoStatements:
    """The least that a lock needs: a row with a unique key is inserted and deleted, on one psycopg connection."""

    def __init__(self, url: str) -> None:
        self._connection = peer("psycopg").connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, nonce text NOT NULL)")

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Row(self._connection.cursor(), name)

    def close(self) -> None:
        self._connection.close()


class _Row:
    def __init__(self, cursor: Any, name: str) -> None:
        self._cursor, self._row = cursor, (name, uuid.uuid4().hex)

    def __enter__(self) -> None:
        self._cursor.execute("INSERT INTO bare VALUES (%s, %s)", self._row, prepare=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor.execute("DELETE FROM bare WHERE name = %s AND nonce = %s", self._row, prepare=True)


class Dlock:
    """sqlalchemy_dlock: an advisory lock on a connection that the caller brings."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url, "psycopg")

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Dlock(self._engine, name)

    def close(self) -> None:
        self._engine.dispose()


class _Dlock:
    def __init__(self, engine: Any, name: str) -> None:
        self._engine, self._name, self._stack = engine, name, contextlib.ExitStack()

    def __enter__(self) -> None:
        connection = self._stack.enter_context(self._engine.connect())
        self._stack.enter_context(peer("sqlalchemy_dlock").create_sadlock(connection, self._name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Pals:
    """pals: an advisory lock on a connection of SQLAlchemy's pool."""

    def __init__(self, url: str) -> None:
        self._locker = peer("pals").Locker("bench", create_engine_callable=lambda: _engine(url, "psycopg2"))

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = self._locker.lock(name)
        return made

    def close(self) -> None:
        self._locker.engine.dispose()


def _engine(url: str, driver: str) -> Any:
    sqlalchemy = peer("sqlalchemy")
    dialect = url.replace("postgresql://", f"postgresql+{driver}://", 1)
    return sqlalchemy.create_engine(dialect, pool_size=_CONNECTIONS_MAX, max_overflow=0)


_FAMILY: dict[str, Any] = {
    "arena": Arena.POSTGRESQL,
    "server": Postgresql(),
    "first_use": None,
    "writes": "its log, not synced",
    "only_in": ("uncontended", "contended", "waiters"),
}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "driver": "psycopg", "has_ttl": True, "has_fence": True}
_IN_THE_SERVER: dict[str, Any] = {"waits": "in the server", "order": "the server's", "connection_each": True}

CONTENDERS = [
    Contender(
        name="holdfast postgresql",
        threads=Holdfast,
        imports="import holdfast",
        waits="is woken",
        order="by turns",
        at_server="?local_handover=no",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast postgresql asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        waits="is woken",
        order="by turns",
        at_server="?local_handover=no",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast advisory",
        threads=lambda url: Holdfast(f"{url}?method=advisory"),
        imports="import holdfast",
        **_IN_THE_SERVER,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="INSERT + DELETE",
        is_floor=True,
        threads=TwoStatements,
        package="psycopg",
        imports="import psycopg",
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
    Contender(
        name="sqlalchemy-dlock",
        threads=Dlock,
        package="sqlalchemy-dlock",
        driver="psycopg",
        imports="import sqlalchemy_dlock",
        baseline_of=("contended", "waiters"),
        **_IN_THE_SERVER,
        **_FAMILY,
    ),
    Contender(
        name="PALs",
        threads=Pals,
        package="PALs",
        imports="import pals",
        **_IN_THE_SERVER,
        **_FAMILY,
    ),
    Contender(
        name="tooz postgresql",
        threads=Tooz,  # an advisory lock on a connection for each acquire
        package="tooz",
        imports="import tooz.coordination",
        **_IN_THE_SERVER,
        **_FAMILY,
    ),
]
