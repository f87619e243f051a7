"""One ZooKeeper server for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid

from tests.support.server_process import until_exit
from tests.support.zookeeper.servers import Server


def fresh_url(**options: str) -> str:
    """The URL of the server with a root node that no other test uses."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{server().url}/test-{uuid.uuid4().hex}" + (f"?{query}" if query else "")


@functools.cache
def server() -> Server:
    return until_exit(Server)
