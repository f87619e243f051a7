"""A client for each backend. The other libraries are blocking, so threads are enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast


@pytest.fixture
def client(store_url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(store_url) as client:
        yield client


@pytest.fixture
def other(store_url: str) -> Iterator[holdfast.Client]:
    """A second client, in place of another process."""
    with holdfast.Client(store_url) as client:
        yield client
