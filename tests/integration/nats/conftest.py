"""Servers and clients for the tests of NATS."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.nats import shared
from tests.support.nats.servers import Server, Trio
from tests.support.redis.proxy import Proxy
from tests.support.server_process import folder_in_memory, running

StartServer = Callable[..., Server]


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture
def bucket() -> str:
    """The name of a bucket for this test alone."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def url(server: Server, bucket: str) -> str:
    return f"{server.url}?bucket={bucket}"


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers that end with the test, with the text of a configuration."""
    with contextlib.ExitStack() as stack:

        def start(configuration: str = "", **login: str) -> Server:
            folder: Path = stack.enter_context(folder_in_memory())
            (folder / "nats.conf").write_text(configuration)
            return stack.enter_context(
                running(Server(folder / "own", options=["-c", str(folder / "nats.conf")], login=login))
            )

        yield start


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, bucket: str) -> str:
    return f"nats://127.0.0.1:{proxy.port}?bucket={bucket}"


@pytest.fixture(scope="module")
def started_trio(folder: Path) -> Iterator[Trio]:
    with running(Trio(folder / "trio")) as started:
        yield started


@pytest.fixture
def trio(started_trio: Trio) -> Iterator[Trio]:
    """Three servers. A test may stop and kill some of them."""
    started_trio.heal()
    yield started_trio
    started_trio.heal()
