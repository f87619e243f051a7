"""Every conformance test runs on every backend, with threads and with asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import CASES, Case
from tests.conformance.lab import Lab, Store


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    parameter: Case = request.param
    return parameter


@pytest.fixture
def store_url(case: Case, tmp_path: Path) -> str:
    return case.fresh_url(tmp_path)


@pytest.fixture(params=["threads", "asyncio"])
def lab(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    if not case.shows_waiters and request.node.get_closest_marker("counts_waiters") is not None:
        pytest.skip(f"{case.name} does not show waiters")
    return Lab(case.fresh_url(tmp_path), request.param, shows_waiters=case.shows_waiters)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """For tests of a backend's verbs, without the engine."""
    store = Store(store_url)
    yield store
    store.close()
