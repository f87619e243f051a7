"""Servers and clients for the tests of PostgreSQL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.etcd.shared import in_memory
from tests.support.postgresql import shared
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server, running

Open = Callable[[str], holdfast.Client]


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for servers, which run as another user. Each test run removes that user's access to pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="holdfast-postgresql-", dir=in_memory()) as name:
        os.chmod(name, 0o711)  # noqa: S103  (they have to get through)
        yield Path(name)


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    """A server that a test may stop and kill."""
    with running(Server(folder / "own")) as started:
        yield started


@pytest.fixture
def url() -> str:
    """The shared server, with tables for this test."""
    return shared.fresh_url()


@pytest.fixture
def client_of() -> Iterator[Open]:
    """A function that opens clients, which are closed at the end."""
    clients: list[holdfast.Client] = []

    def make(url: str) -> holdfast.Client:
        clients.append(holdfast.Client(url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    """A driver of the backend."""
    made = Driver(url)
    yield made
    made.close()
