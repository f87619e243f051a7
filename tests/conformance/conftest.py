"""Every conformance test runs on every backend, with threads and with asyncio; or on that of `--holdfast-url` only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import CASES, Case, case_of_url
from tests.conformance.lab import Lab, Store


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The folders have tests of our own backends beside other libraries, and of CPython."""
    return True if config.getoption("--holdfast-url") and collection_path.is_dir() else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        url, mark = metafunc.config.getoption("--holdfast-url"), metafunc.definition.get_closest_marker("cases")
        cases = [case_of_url(url)] if url else CASES if mark is None else mark.args[0]
        metafunc.parametrize("case", cases, ids=lambda case: case.name)


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
