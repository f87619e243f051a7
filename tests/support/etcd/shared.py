"""etcd servers for all tests that need no private one: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from urllib.parse import urlencode

from tests.support.etcd.servers import Server
from tests.support.server_process import for_all_workers, until_exit


def fresh_url(**options: str) -> str:
    """The URL of `server` with a prefix that no other test uses."""
    return _fresh(server(), options)


def fresh_common_url(**options: str) -> str:
    """The same on a server that all workers use."""
    return _fresh(_common_server(), options)


def _fresh(server: Server, options: dict[str, str]) -> str:
    return f"{server.url}?{urlencode({'prefix': f'test-{uuid.uuid4().hex}/', **options})}"


@functools.cache
def server() -> Server:
    """The server of this worker. No other worker changes its revision."""
    return until_exit(Server)


@functools.cache
def _common_server() -> Server:
    return for_all_workers(Server, "etcd")
