"""A server for every test: memcached starts in milliseconds and stores nothing on disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.memcached.servers import Server
from tests.support.redis.proxy import Proxy
from tests.support.server_process import running

# These tests read /proc.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]

StartServer = Callable[..., Server]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers that end with the test, with command line options."""
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(running(Server(*options)))


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy) -> str:
    return f"memcached://127.0.0.1:{proxy.port}"
