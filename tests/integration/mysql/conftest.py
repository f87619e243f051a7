"""Servers and clients for the tests of MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server
from tests.support.server_process import running

Drive = Callable[[str], Driver]


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    """A durable server that a test may stop, kill and configure."""
    with running(Server(folder / "server")) as started:
        yield started


@pytest.fixture
def database() -> str:
    """A database for this test, on the shared server."""
    return shared.fresh_database()


@pytest.fixture
def url(server: Server, database: str) -> str:
    return server.url_of(database)


@pytest.fixture
def driver_of() -> Iterator[Drive]:
    """A function that opens drivers of the backend, which are closed at the end."""
    drivers: list[Driver] = []

    def make(url: str) -> Driver:
        drivers.append(Driver(url))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def is_busy(lock: holdfast.Lock) -> bool:
    """Whether an acquire without a wait finds the lock held.

    `locked` opens the connection first: on a busy machine that may take longer than the second that the acquire has.
    """
    lock.locked()
    return lock.acquire(timeout=0) is None
