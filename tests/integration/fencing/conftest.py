"""Databases for the tests of the SQL guards: the same tests run on each of them."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg.rows
import pymysql.constants.CLIENT
import pymysql.cursors
import pytest

from holdfast.fencing.sql import MySQLGuard, PostgreSQLGuard, SqlGuard, SQLiteGuard
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql


class Database:
    """A database for one test. Connections are not in autocommit mode, and are closed with the test."""

    def __init__(self, name: str, guard: SqlGuard, placeholder: str, connect: Callable[..., Any]) -> None:
        self.name, self.guard, self.placeholder = name, guard, placeholder
        self._connect = connect
        self._connections: list[Any] = []

    def connect(self, **options: Any) -> Any:
        """Open a connection. Only one thread at a time may use it."""
        self._connections.append(self._connect(**options))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture(params=["postgresql", "mysql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with the guard's table, and a table `register` of one row."""
    makers: dict[str, Callable[[], Database]] = {
        "postgresql": _postgresql,
        "mysql": _mysql,
        "sqlite": lambda: _sqlite(tmp_path),
    }
    made = makers[request.param]()
    with contextlib.closing(made):
        connection = made.connect()
        cursor = connection.cursor()
        made.guard.create(cursor)
        cursor.execute("CREATE TABLE register (id INTEGER PRIMARY KEY, value BIGINT NOT NULL, fence BIGINT)")
        cursor.execute("INSERT INTO register (id, value) VALUES (1, 0)")
        connection.commit()
        yield made


def _postgresql() -> Database:
    server, schema = postgresql.server(), f"test_{uuid.uuid4().hex}"
    server.rows(f"CREATE SCHEMA {schema}")

    def connect(*, mapping: bool = False, autocommit: bool = False) -> Any:
        rows: Any = psycopg.rows.dict_row if mapping else psycopg.rows.tuple_row
        options = f"-c search_path={schema}"
        return psycopg.connect(server.url, options=options, row_factory=rows, autocommit=autocommit)

    return Database("postgresql", PostgreSQLGuard(), "%s", connect)


def _mysql() -> Database:
    server, name = mysql.server(), mysql.fresh_database()

    def connect(*, mapping: bool = False, autocommit: bool = False, flags: int = 0) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=server.port,
            user="root",
            database=name,
            autocommit=autocommit,
            ssl_disabled=True,
            client_flag=flags,
            cursorclass=pymysql.cursors.DictCursor if mapping else pymysql.cursors.Cursor,
        )

    return Database("mysql", MySQLGuard(), "%s", connect)


def _sqlite(folder: Path) -> Database:
    def connect(*, mapping: bool = False, autocommit: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            folder / "data.db",
            timeout=30,
            isolation_level=None if autocommit else "IMMEDIATE",
            check_same_thread=False,
        )
        if mapping:
            connection.row_factory = sqlite3.Row
        return connection

    return Database("sqlite", SQLiteGuard(), "?", connect)
