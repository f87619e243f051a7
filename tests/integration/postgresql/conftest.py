"""Servers and clients for the tests of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgresql import shared
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.servers import Server
from tests.support.server_process import running


@pytest.fixture
def server() -> Server:
    """The server that all tests share."""
    return shared.server()


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
def driver(url: str) -> Iterator[Driver]:
    """A driver of the backend."""
    made = Driver(url)
    yield made
    made.close()
