"""Five real nodes for every test: a shared set, and a separate one for a test that breaks nodes."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.redis.binaries import Binary, main_binary
from tests.support.redis.proxy import Proxy
from tests.support.redis.redlock import RedlockServers

# Processes are watched by pidfd and /proc here.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


class StartRedlock(Protocol):
    """Starts nodes that end with the test."""

    def __call__(
        self, *options: str, number: int = 5, environments: Mapping[int, Mapping[str, str]] | None = None
    ) -> RedlockServers: ...


@pytest.fixture(scope="session")
def binary() -> Binary:
    return main_binary()


@pytest.fixture(scope="session")
def shared_redlock(binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedlockServers]:
    with RedlockServers(binary, tmp_path_factory.mktemp("redlock")) as redlock:
        yield redlock


@pytest.fixture
def redlock(shared_redlock: RedlockServers) -> RedlockServers:
    """Five nodes without data. Do not kill them or change their settings: other tests use them."""
    for server in shared_redlock.servers:
        server.call("FLUSHALL")
    return shared_redlock


@pytest.fixture
def start_redlock(binary: Binary, tmp_path: Path) -> Iterator[StartRedlock]:
    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def start(
            *options: str, number: int = 5, environments: Mapping[int, Mapping[str, str]] | None = None
        ) -> RedlockServers:
            folder = tmp_path / f"redlock-{next(numbers)}"
            return stack.enter_context(
                RedlockServers(binary, folder, options, number=number, environments=environments)
            )

        yield start


@pytest.fixture
def own_redlock(start_redlock: StartRedlock) -> RedlockServers:
    """Five nodes that the test may break."""
    return start_redlock()


@pytest.fixture
def proxies(redlock: RedlockServers) -> Iterator[list[Proxy]]:
    """A proxy in front of each of the shared nodes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.port)) for server in redlock.servers]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings and errors logged so far."""
    caplog.set_level(logging.WARNING, logger="holdfast")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
