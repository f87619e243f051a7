"""One ZooKeeper server for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import uuid
from pathlib import Path

from tests.support.zookeeper.servers import Server, running


def fresh_url(**options: str) -> str:
    """The URL of the server with a root node that no other test uses."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{server().url}/test-{uuid.uuid4().hex}" + (f"?{query}" if query else "")


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-zookeeper-"))
    return stack.enter_context(running(Server(Path(folder) / "server")))
