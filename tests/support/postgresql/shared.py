"""One server for all tests that only need some PostgreSQL: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import uuid
from pathlib import Path

from tests.support.etcd.shared import in_memory
from tests.support.postgresql.servers import Server, running


def fresh_url(**options: str) -> str:
    """A URL with tables for one test."""
    return server().url_of("postgres", **{"schema": f"test_{uuid.uuid4().hex}", **options})


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-postgresql-", dir=in_memory()))
    return stack.enter_context(running(Server(Path(folder) / "server")))
