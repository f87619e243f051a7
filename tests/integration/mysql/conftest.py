"""Servers and clients for the tests of MySQL and MariaDB."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.etcd.shared import in_memory
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server, running

Open = Callable[[str], holdfast.Client]
Drive = Callable[[str], Driver]


@pytest.fixture
def server() -> Server:
    """The one that all tests share."""
    return shared.server()


@pytest.fixture(scope="module")
def own_server(folder_for_all: Path) -> Iterator[Server]:
    """One that a test may stop, kill and set up; it forgets nothing when it is killed."""
    with running(Server(folder_for_all / "server")) as started:
        yield started


@pytest.fixture(scope="module")
def folder_for_all() -> Iterator[Path]:
    """Not one of pytest's: every new test run shuts other users out of those, and the server is another user."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mysql-", dir=in_memory()) as folder:
        yield Path(folder)


@pytest.fixture
def database() -> str:
    """One of its own, on the shared server."""
    return shared.fresh_database()


@pytest.fixture
def url(server: Server, database: str) -> str:
    return server.url_of(database)


@pytest.fixture
def client_of() -> Iterator[Open]:
    """Makes clients, and closes them."""
    clients: list[holdfast.Client] = []

    def make(url: str) -> holdfast.Client:
        clients.append(holdfast.Client(url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def driver_of() -> Iterator[Drive]:
    """Likewise, for who speaks to a backend directly."""
    drivers: list[Driver] = []

    def make(url: str) -> Driver:
        drivers.append(Driver(url))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


def is_busy(lock: holdfast.Lock) -> bool:
    """Somebody has it, is what one hears who does not wait. First the connection is opened, which may take its time.

    On a busy machine that is more than the second in which one who does not wait gives up.
    """
    lock.locked()
    return lock.acquire(timeout=0) is None
