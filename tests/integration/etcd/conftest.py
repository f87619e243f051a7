"""Servers and clients for the tests of etcd."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, Trio, running
from tests.support.processes import WorkerPool

Open = Callable[..., holdfast.Client]


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture
def url() -> str:
    """The shared server, with a prefix for this test alone."""
    return shared.fresh_url()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for servers in memory: a busy disk can take a second to write, which is too long for elections."""
    with tempfile.TemporaryDirectory(prefix="holdfast-etcd-", dir=shared.in_memory()) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    """A server that a test may stop and kill."""
    with running(Server(folder / "own")) as started:
        yield started


@pytest.fixture(scope="module")
def started_trio(folder: Path) -> Iterator[Trio]:
    with running(Trio(folder / "trio")) as started:
        yield started


@pytest.fixture
def trio(started_trio: Trio) -> Iterator[Trio]:
    """Three members, of which a test may stop and kill some."""
    started_trio.heal()
    yield started_trio
    started_trio.heal()


@pytest.fixture
def client_of() -> Iterator[Open]:
    """Creates clients, and closes them after the test."""
    clients: list[holdfast.Client] = []

    def make(url: str, **options: Any) -> holdfast.Client:
        clients.append(holdfast.Client(url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Processes with a client each; their commands are the same for every store."""
    with WorkerPool(str(Path(__file__).parents[2] / "support" / "worker.py")) as pool:
        yield pool
