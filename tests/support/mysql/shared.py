"""One server for all tests that only need some MariaDB: started when first asked for, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import uuid
from pathlib import Path

from tests.support.mysql.servers import Server, running


def fresh_url(**options: str) -> str:
    """With a database that nobody else uses."""
    return server().url_of(fresh_database(), **options)


def fresh_database() -> str:
    database = f"test_{uuid.uuid4().hex}"
    server().rows(f"CREATE DATABASE {database}", database="")
    return database


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mysql-"))
    return stack.enter_context(running(Server(Path(folder) / "server")))
