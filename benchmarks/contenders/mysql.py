"""Locks in one MariaDB: holdfast beside the Python libraries that have one, and beside two bare statements.

All of them use PyMySQL. The peers use GET_LOCK and RELEASE_LOCK: a lock that belongs to a connection.
"""

from __future__ import annotations

import contextlib
import uuid
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Mariadb

WAIT_MAX = 600  # seconds; longer than any case takes
_CONNECTIONS_MAX = 100


class TwoStatements:
    """The least that a lock needs: a row with a unique key is inserted and deleted, on one connection."""

    def __init__(self, url: str) -> None:
        self._connection = _connect(url)
        self._cursor = self._connection.cursor()
        self._cursor.execute("CREATE TABLE IF NOT EXISTS bare (name varchar(64) PRIMARY KEY, nonce char(32) NOT NULL)")

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Row(self._cursor, name)

    def close(self) -> None:
        self._connection.close()


class _Row:
    def __init__(self, cursor: Any, name: str) -> None:
        self._cursor, self._row = cursor, (name, uuid.uuid4().hex)

    def __enter__(self) -> None:
        self._cursor.execute("INSERT INTO bare VALUES (%s, %s)", self._row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor.execute("DELETE FROM bare WHERE name = %s AND nonce = %s", self._row)


class TwoFunctions:
    """GET_LOCK and RELEASE_LOCK, with a connection for each lock, because callers on one connection share its locks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[Any] = []

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        connection = _connect(self._url)
        self._opened.append(connection)
        return _Function(connection.cursor(), name)

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


class _Function:
    def __init__(self, cursor: Any, name: str) -> None:
        self._cursor, self._name = cursor, name

    def __enter__(self) -> None:
        self._call("SELECT GET_LOCK(%s, %s)", self._name, WAIT_MAX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call("SELECT RELEASE_LOCK(%s)", self._name)

    def _call(self, statement: str, *values: object) -> None:
        self._cursor.execute(statement, values)
        if self._cursor.fetchone() != (1,):
            raise RuntimeError(f"{statement} was refused")


class Dlock:
    """sqlalchemy_dlock: GET_LOCK on a connection that the caller brings."""

    def __init__(self, url: str) -> None:
        dialect = url.replace("mysql://", "mysql+pymysql://", 1)
        self._engine = peer("sqlalchemy").create_engine(dialect, pool_size=_CONNECTIONS_MAX, max_overflow=0)

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Dlock(self._engine, name)

    def close(self) -> None:
        self._engine.dispose()


class _Dlock:
    def __init__(self, engine: Any, name: str) -> None:
        self._engine, self._name, self._stack = engine, name, contextlib.ExitStack()

    def __enter__(self) -> None:
        connection = self._stack.enter_context(self._engine.connect())
        # Without a limit it calls GET_LOCK(…, -1), which MySQL accepts and MariaDB refuses.
        lock = peer("sqlalchemy_dlock").create_sadlock(connection, self._name, contextual_timeout=WAIT_MAX)
        self._stack.enter_context(lock)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _connect(url: str) -> Any:
    parts = urlsplit(url)
    return peer("pymysql").connect(
        host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:], autocommit=True
    )


_FAMILY: dict[str, Any] = {
    "arena": Arena.MYSQL,
    "server": Mariadb(),
    "first_use": None,
    "writes": "its log, not synced",
    "only_in": ("uncontended", "contended", "waiters"),
}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "driver": "pymysql", "has_ttl": True, "has_fence": True}
_IN_THE_SERVER: dict[str, Any] = {"waits": "in the server", "order": "the server's", "connection_each": True}

CONTENDERS = [
    Contender(
        name="holdfast mysql",
        threads=Holdfast,
        imports="import holdfast",
        waits="polls, 2–20 ms",
        order="by turns",
        at_server="?local_handover=no",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast mysql asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        waits="polls, 2–20 ms",
        order="by turns",
        at_server="?local_handover=no",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast row",
        threads=lambda url: Holdfast(f"{url}?method=row"),
        imports="import holdfast",
        **_IN_THE_SERVER,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast version",
        threads=lambda url: Holdfast(f"{url}?method=version"),
        imports="import holdfast",
        waits="polls, 50–100 ms",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="INSERT + DELETE, MariaDB",
        is_floor=True,
        threads=TwoStatements,
        package="pymysql",
        imports="import pymysql",
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
    Contender(
        name="GET_LOCK",
        threads=TwoFunctions,
        package="pymysql",
        imports="import pymysql",
        **_IN_THE_SERVER,
        **_FAMILY,
    ),
    Contender(
        name="sqlalchemy-dlock mysql",
        threads=Dlock,
        package="sqlalchemy-dlock",
        driver="pymysql",
        imports="import sqlalchemy_dlock",
        baseline_of=("contended", "waiters"),
        **_IN_THE_SERVER,
        **_FAMILY,
    ),
    Contender(
        name="tooz mysql",
        threads=Tooz,  # GET_LOCK on a connection for each acquire, without waiting, and again every second
        package="tooz",
        driver="pymysql",
        imports="import tooz.coordination",
        waits="polls, 1 s",
        connection_each=True,
        **_FAMILY,
    ),
]
