"""Five real nodes for every test: some that all tests share, some of its own for a test that breaks them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

import holdfast
from tests.support.processes import WORKER, WorkerPool
from tests.support.redis.binaries import Binary, main_binary
from tests.support.redis.councils import Council
from tests.support.redis.proxy import Proxy

# Processes are watched by pidfd and /proc here.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]

OpenClient = Callable[[str], holdfast.Client]


class StartCouncil(Protocol):
    """Starts nodes that end with the test."""

    def __call__(
        self, *options: str, number: int = 5, environments: Mapping[int, Mapping[str, str]] | None = None
    ) -> Council: ...


@pytest.fixture(scope="session")
def binary() -> Binary:
    return main_binary()


@pytest.fixture(scope="session")
def shared_council(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Council]:
    with Council(binary, tmp_path_factory.mktemp("council")) as council:
        yield council


@pytest.fixture
def council(shared_council: Council) -> Council:
    """Five nodes without data. Do not kill them or change their settings: others come after you."""
    for server in shared_council.servers:
        server.call("FLUSHALL")
    return shared_council


@pytest.fixture
def start_council(binary: Binary, tmp_path: Path) -> Iterator[StartCouncil]:
    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def start(
            *options: str, number: int = 5, environments: Mapping[int, Mapping[str, str]] | None = None
        ) -> Council:
            folder = tmp_path / f"council-{next(numbers)}"
            return stack.enter_context(Council(binary, folder, options, number=number, environments=environments))

        yield start


@pytest.fixture
def own_council(start_council: StartCouncil) -> Council:
    """Five nodes that the test may break."""
    return start_council()


@pytest.fixture
def proxies(council: Council) -> Iterator[list[Proxy]]:
    """One before each of the shared nodes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.port)) for server in council.servers]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """Opens clients that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(holdfast.Client(url))


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Processes with a client each; what they can be told is the same for every store."""
    with WorkerPool(WORKER) as pool:
        yield pool


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What has been logged until now, as warnings or worse."""
    caplog.set_level(logging.WARNING, logger="holdfast")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
