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
    """The one that all tests share."""
    return shared.server()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """For servers, which run as another user: pytest's is shut for those whenever somebody begins another test run."""
    with tempfile.TemporaryDirectory(prefix="holdfast-postgresql-", dir=in_memory()) as name:
        os.chmod(name, 0o711)  # noqa: S103  (they have to get through)
        yield Path(name)


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    """One that a test may stop and kill."""
    with running(Server(folder / "own")) as started:
        yield started


@pytest.fixture
def url() -> str:
    """The shared server, with tables of its own."""
    return shared.fresh_url()


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
def driver(url: str) -> Iterator[Driver]:
    """The verbs themselves."""
    made = Driver(url)
    yield made
    made.close()
