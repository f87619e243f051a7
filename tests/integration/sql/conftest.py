"""The same database through different libraries, for the tests of `holdfast.sql`."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy.orm
from django.conf import settings
from django.db.utils import ConnectionHandler

from holdfast import sql
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql


class LibraryConnection:
    """One connection of a library, outside of a transaction."""

    def __init__(self, native: Any, execute: Callable[[str], Any], close: Callable[[], Any]) -> None:
        self.native, self.execute, self.close = native, execute, close
        self.commit, self.rollback = native.commit, native.rollback

    def begin(self) -> None:
        """Most connections begin a transaction with their first statement."""


class DjangoConnection(LibraryConnection):
    """Django is in autocommit mode outside of `atomic`."""

    def begin(self) -> None:
        if self.native.get_autocommit():
            self.native.set_autocommit(False)


class Database:
    """A database for one test, with the table of `once`, and a table of effects."""

    def __init__(self, library: str, dialect: str, folder: Path) -> None:
        self.library, self.dialect = library, dialect
        self.autocommits = False  # the mode of new connections
        self._opened: list[LibraryConnection] = []
        if dialect == "postgresql":
            self.schema = f"test_{uuid.uuid4().hex}"
            postgresql.server().rows(f"CREATE SCHEMA {self.schema}")
        elif dialect == "mysql":
            self.name = mysql.fresh_database()
        else:
            self.path = folder / "data.db"
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")

    def open(self) -> LibraryConnection:
        """A connection of the library. It is used by one thread at a time."""
        connection: LibraryConnection = getattr(self, f"_{self.library}")()
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._opened:
            with contextlib.suppress(Exception):
                connection.rollback()
            connection.close()

    def raw(self) -> Any:
        """A connection of the driver."""
        if self.dialect == "postgresql":
            options = f"-c search_path={self.schema}"
            return psycopg.connect(postgresql.server().url, options=options, autocommit=self.autocommits)
        if self.dialect == "mysql":
            return pymysql.connect(
                host="127.0.0.1",
                port=mysql.server().port,
                user="root",
                database=self.name,
                ssl_disabled=True,
                autocommit=self.autocommits,
            )
        return sqlite3.connect(
            self.path,
            timeout=30,
            isolation_level=None if self.autocommits else "IMMEDIATE",
            check_same_thread=False,
        )

    def _driver(self) -> LibraryConnection:
        connection = self.raw()
        return LibraryConnection(connection, lambda text: _rows(connection.cursor(), text), connection.close)

    def _psycopg2(self) -> LibraryConnection:
        options = f"-c search_path={self.schema}"
        connection: Any = psycopg2.connect(postgresql.server().url, options=options)
        connection.autocommit = self.autocommits
        return LibraryConnection(connection, lambda text: _rows(connection.cursor(), text), connection.close)

    def _engine(self) -> sqlalchemy.Engine:
        urls = {"postgresql": "postgresql+psycopg://", "mysql": "mysql+pymysql://", "sqlite": "sqlite://"}
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if self.autocommits else {}
        return sqlalchemy.create_engine(
            urls[self.dialect], creator=self.raw, poolclass=sqlalchemy.pool.NullPool, **options
        )

    def _sqlalchemy(self) -> LibraryConnection:
        connection = self._engine().connect()
        return LibraryConnection(connection, lambda text: _result(connection, text), connection.close)

    def _session(self) -> LibraryConnection:
        session = sqlalchemy.orm.Session(self._engine())
        return LibraryConnection(session, lambda text: _result(session, text), session.close)

    def _django(self) -> LibraryConnection:
        if not settings.configured:
            settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
            django.setup()
        if self.dialect == "postgresql":
            server = postgresql.server()
            config = {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "postgres",
                "USER": "postgres",
                "HOST": "127.0.0.1",
                "PORT": server.port,
                "OPTIONS": {"options": f"-c search_path={self.schema}"},
            }
        else:
            config = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": self.path,
                "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
            }
        connection: Any = ConnectionHandler({"default": config})["default"]
        connection.inc_thread_sharing()  # a test begins in one thread and ends in another

        def execute(text: str) -> Any:
            with connection.cursor() as cursor:
                return _rows(cursor, text)

        return DjangoConnection(connection, execute, connection.close)


def _rows(cursor: Any, text: str) -> Any:
    cursor.execute(text)
    return [*cursor.fetchall()] if cursor.description else []


def _result(connection: Any, text: str) -> Any:
    result = connection.execute(sqlalchemy.text(text))
    return [tuple(row) for row in result] if result.returns_rows else []


KINDS = [
    *(("driver", dialect) for dialect in ("postgresql", "mysql", "sqlite")),
    ("psycopg2", "postgresql"),
    *(("sqlalchemy", dialect) for dialect in ("postgresql", "mysql", "sqlite")),
    *(("session", dialect) for dialect in ("postgresql", "mysql", "sqlite")),
    *(("django", dialect) for dialect in ("postgresql", "sqlite")),
]


@pytest.fixture(params=KINDS, ids="-".join)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    library, dialect = request.param
    made = Database(library, dialect, tmp_path)
    with contextlib.closing(made):
        connection = made.open()
        connection.begin()
        sql.create_table(connection.native)
        connection.execute("CREATE TABLE effects (id VARCHAR(100), worker INTEGER)")
        connection.commit()
        yield made
