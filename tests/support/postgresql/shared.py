"""One server for all tests that only need some PostgreSQL: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid

from tests.support.postgresql.pgbouncer import PgBouncer
from tests.support.postgresql.servers import Server
from tests.support.server_process import until_exit


def fresh_url(**options: str) -> str:
    """A URL with tables for one test."""
    return server().url_of("postgres", **{"schema": f"test_{uuid.uuid4().hex}", **options})


def fresh_pooled_url(**options: str) -> str:
    """The same, by way of a pooler in transaction mode."""
    return pooler().url(**{"schema": f"test_{uuid.uuid4().hex}", "pooler": "transaction", **options})


@functools.cache
def server() -> Server:
    return until_exit(Server)


@functools.cache
def pooler() -> PgBouncer:
    return until_exit(lambda folder: PgBouncer(folder, server()))
