"""One server for all tests that only need some PostgreSQL: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import functools
import re
import uuid
from typing import Any

import psycopg

from holdfast.backends.postgresql.sql import ddl
from holdfast.url import parse
from tests.support.permissions import statements
from tests.support.postgresql.pgbouncer import PgBouncer
from tests.support.postgresql.servers import Server
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """A URL with tables for one test."""
    return server().url_of("postgres", **{"schema": f"test_{uuid.uuid4().hex}", **options})


def fresh_pooled_url(**options: str) -> str:
    """The same, by way of a pooler in transaction mode."""
    return pooler().url(**{"schema": f"test_{uuid.uuid4().hex}", "pooler": "transaction", **options})


def restricted_url(**options: str) -> str:
    """As `fresh_url`, for a role that has only the grants of the docs. An administrator has created the tables."""
    url = fresh_url(**options)
    _, *grants = grants_on(schema := parse(url).options["schema"])
    _create_role()
    _administrator().execute("\n".join((ddl(parse(url)), *grants)).encode())
    return server().url_of("app", **{"schema": schema, **options})


def grants_on(schema: str) -> list[str]:
    """The statements of the docs: the first creates the role `app`, the others grant rights on this schema."""
    return [re.sub(r"\blocks\b", schema, line) for line in statements("postgresql", "Grants")]


@functools.cache
def _create_role() -> None:
    server().rows(grants_on("")[0].encode())


@functools.cache
def _administrator() -> psycopg.Connection[tuple[Any, ...]]:
    """A connection for all tests: a new one takes the server longer than most statements."""
    connection = server().connect()
    connection.execute("SET check_function_bodies = off")  # a wrong function fails when it is called
    atexit.register(connection.close)
    return connection


@functools.cache
def server() -> Server:
    return until_exit(Server)


@functools.cache
def pooler() -> PgBouncer:
    return until_exit(lambda folder: PgBouncer(folder, server()))
