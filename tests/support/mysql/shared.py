"""One server for all tests that only need some MariaDB: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import functools
import uuid
from typing import Any

from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.url import parse
from tests.support.mysql.servers import Server
from tests.support.permissions import statements
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """A URL with tables for one test. They are created here, because that takes longer than some tests wait.

    The server has no TLS. With the default, PyMySQL would read all certificates of the machine at each login.
    """
    url = server().url_of(fresh_database(), **{"tls": "no", **options})
    create_tables(parse(url))
    return url


def restricted_url(**options: str) -> str:
    """As `fresh_url`, for a user that has only the grants of the docs. An administrator has created the tables."""
    url = fresh_url(**options)
    database = parse(url).path.removeprefix("/")
    _create_user()
    _administer(*grants_on(database, options.get("method", "unique")))
    return server().url_of(database, user="app:secret", **{"tls": "no", **options})


def grants_on(database: str, method: str) -> list[str]:
    """The grants of the docs on the single tables and procedures, for the user `app`."""
    lines = statements("mysql", "In a database with other tables")[1:]
    if method != "version":
        lines += statements("mysql", f"And for method={method}")
    return [line.replace(" locks.", f" {database}.") for line in lines]


@functools.cache
def _create_user() -> None:
    _administer(statements("mysql", "In a database with other tables")[0])


def fresh_database() -> str:
    database = f"test_{uuid.uuid4().hex}"
    _administer(f"CREATE DATABASE {database}")
    return database


def _administer(*statements: str) -> None:
    with _administrator().cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@functools.cache
def _administrator() -> Any:
    """A connection for all tests: a login takes longer than most statements."""
    connection = server().connect("")
    atexit.register(connection.close)
    return connection


@functools.cache
def server() -> Server:
    return until_exit(Server)
