"""Servers and clients for the tests of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast
from tests.support.zookeeper import shared
from tests.support.zookeeper.ensembles import Linked, running
from tests.support.zookeeper.servers import Server

Open = Callable[[str], holdfast.Client]


@pytest.fixture
def server() -> Server:
    """The one that all tests share."""
    return shared.server()


@pytest.fixture
def url() -> str:
    """The shared server, with a node of its own."""
    return shared.fresh_url()


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    """An ensemble whose members give each other up late, so that one that is cut off goes on answering."""
    with running(Linked(tmp_path_factory.mktemp("ensemble"), sync_limit=25)) as started:
        yield started


@pytest.fixture
def ensemble(three: Linked) -> Linked:
    """All of its members run, and can reach each other, whatever the test before has done."""
    three.heal()
    return three


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
