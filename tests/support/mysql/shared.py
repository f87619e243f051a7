"""One server for all tests that only need some MariaDB: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import uuid
from pathlib import Path

from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.url import parse
from tests.support.etcd.shared import in_memory
from tests.support.mysql.servers import Server, running


def fresh_url(**options: str) -> str:
    """A URL with tables for one test. They are created here, because that takes longer than some tests wait."""
    url = server().url_of(fresh_database(), **options)
    create_tables(parse(url))
    return url


def fresh_database() -> str:
    database = f"test_{uuid.uuid4().hex}"
    server().rows(f"CREATE DATABASE {database}", database="")
    return database


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mysql-", dir=in_memory()))
    return stack.enter_context(running(Server(Path(folder) / "server")))
