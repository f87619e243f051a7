"""Real servers for every test: one plain server that all share (emptied for each), fresh ones, and whole topologies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.redis.binaries import WANTED, Binary, find, main_binary
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Pair, Watched
from tests.support.server_process import running

# Processes are watched by pidfd and /proc here.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


class StartServer(Protocol):
    """Starts a server that ends with the test."""

    def __call__(self, *options: str, port: int | None = None, environment: dict[str, str] | None = None) -> Server: ...


@pytest.fixture(scope="session")
def binary() -> Binary:
    return main_binary()


@pytest.fixture(params=WANTED)
def every_binary(request: pytest.FixtureRequest) -> Binary:
    """Each of the server programs in WANTED."""
    return find(request.param)


@pytest.fixture(scope="session")
def shared_server(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Server(binary, tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A plain server without data. Do not kill it or change its settings: other tests use it."""
    shared_server.call("FLUSHALL")
    return shared_server


@pytest.fixture
def start_server(binary: Binary, tmp_path: Path) -> Iterator[StartServer]:
    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def start(*options: str, port: int | None = None, environment: dict[str, str] | None = None) -> Server:
            folder = tmp_path / f"server-{next(numbers)}"
            server = Server(binary, folder, port=port, options=options, environment=environment)
            return stack.enter_context(running(server))

        yield start


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of the plain server."""
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def pair(binary: Binary, tmp_path: Path) -> Iterator[Pair]:
    with Pair(binary, tmp_path) as pair:
        yield pair


@pytest.fixture
def watched(binary: Binary, tmp_path: Path) -> Iterator[Watched]:
    with Watched(binary, tmp_path) as watched:
        yield watched


@pytest.fixture
def cluster(binary: Binary, tmp_path: Path) -> Iterator[Cluster]:
    """A Cluster that the test may break."""
    with Cluster(binary, tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_cluster(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Cluster that tests share, so a test must not break it."""
    with Cluster(binary, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
