"""Servers and clients for the tests of etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import shared
from tests.support.etcd.servers import Server, Trio
from tests.support.server_process import running


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


@pytest.fixture
def url() -> str:
    """The shared server, with a prefix for this test alone."""
    return shared.fresh_url()


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
