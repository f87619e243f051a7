"""A server for every test: memcached starts in milliseconds and stores nothing on disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest

import holdfast
from tests.support.memcached.servers import Server, running
from tests.support.redis.proxy import Proxy

# These tests read /proc.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]

StartServer = Callable[..., Server]
OpenClient = Callable[[str], holdfast.Client]


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


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """Opens clients that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(holdfast.Client(url))
