"""One server for all tests that only need some ZooKeeper: started when first asked for, stopped with the test run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import uuid
from pathlib import Path

from tests.support.zookeeper.servers import Server, running


def fresh_url(**options: str) -> str:
    """With a node that nobody else uses."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{server().url}/test-{uuid.uuid4().hex}" + (f"?{query}" if query else "")


@functools.cache
def server() -> Server:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-zookeeper-"))
    return stack.enter_context(running(Server(Path(folder) / "server")))
