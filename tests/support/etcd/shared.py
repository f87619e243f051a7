"""One etcd server for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from urllib.parse import urlencode

from tests.support.etcd.servers import Server, running

ROOM = 4 << 30  # bytes: a server needs 130 MB from its start, and each worker has one


def fresh_url(**options: str) -> str:
    """The URL of the server with a prefix that no other test uses."""
    return f"{server().url}?{urlencode({'prefix': f'test-{uuid.uuid4().hex}/', **options})}"


def in_memory() -> str | None:
    """A folder in memory, if there is one: servers would wait for a disk at every write, which tests do not need."""
    memory = "/dev/shm"  # noqa: S108 (each server has a folder of its own there)
    return memory if os.path.isdir(memory) and shutil.disk_usage(memory).free > ROOM else None


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-etcd-", dir=in_memory()))
    started: Server = stack.enter_context(running(Server(Path(folder) / "server")))
    return started
