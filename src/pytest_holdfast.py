"""The pytest plugin of holdfast. It imports holdfast only in its fixtures; `-p no:holdfast` switches it off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import AsyncClient, Client
    from holdfast.testing import World

MARKER = "holdfast_allow_held"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", f"{MARKER}: the test may end while it holds locks of holdfast's fixtures")


@pytest.fixture
def holdfast_client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A holdfast.Client on a store in memory of this test. The test fails if a lock is held at its end."""
    from holdfast.testing import memory_client

    with memory_client(allow_held=_allows_held(request)) as client:
        yield client


@pytest.fixture
def holdfast_async_client(request: pytest.FixtureRequest) -> Iterator[AsyncClient]:
    """A holdfast.AsyncClient on a store in memory of this test. The test fails if a lock is held at its end."""
    from holdfast.testing import memory_async_client

    with memory_async_client(allow_held=_allows_held(request)) as client:
        yield client


@pytest.fixture
def holdfast_default(request: pytest.FixtureRequest) -> Iterator[Client]:
    """As holdfast_client, and the default client and $HOLDFAST_URL use the same store in memory."""
    from holdfast.testing import memory_default

    with memory_default(allow_held=_allows_held(request)) as client:
        yield client


@pytest.fixture
def holdfast_world() -> Iterator[World]:
    """A holdfast.testing.World: clients whose clock is moved by hand, and faults on command."""
    from holdfast.testing import World

    with World() as world:
        yield world


def _allows_held(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker(MARKER) is not None
