"""Servers and clients for the tests of PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast
from tests.support.postgresql import shared
from tests.support.postgresql.servers import Server, running

Open = Callable[[str], holdfast.Client]


@pytest.fixture
def server() -> Server:
    """The one that all tests share."""
    return shared.server()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that a test may stop and kill."""
    with running(Server(tmp_path_factory.mktemp("postgresql") / "server")) as started:
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
