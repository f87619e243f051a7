"""Every conformance test runs on every backend, with threads and with asyncio; or on that of `--holdfast-url` only.

A test is not generated for a store that lacks one of the primitives of its mark `needs`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conformance.backends import CASES, OTHER_METHODS, Case, case_of_url
from tests.conformance.lab import Lab, Store

RUNTIMES = ("threads", "asyncio")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The folders have tests of our own backends beside other libraries, and of CPython."""
    return True if config.getoption("--holdfast-url") and collection_path.is_dir() else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    url, mark = metafunc.config.getoption("--holdfast-url"), metafunc.definition.get_closest_marker("cases")
    cases = [case_of_url(url)] if url else CASES if mark is None else mark.args[0]
    needed = {primitive for mark in metafunc.definition.iter_markers("needs") for primitive in mark.args}
    counts_waiters = metafunc.definition.get_closest_marker("counts_waiters") is not None
    able = [case for case in cases if not needed & case.lacks.keys() and (case.shows_waiters or not counts_waiters)]
    if "lab" not in metafunc.fixturenames:
        metafunc.parametrize("case", able, ids=lambda case: case.name)
        return
    pairs = [(case, runtime) for case in able for runtime in _runtimes(case, metafunc)]
    metafunc.parametrize(
        ("case", "lab"), pairs, indirect=["lab"], ids=[f"{runtime}-{case.name}" for case, runtime in pairs]
    )


def _runtimes(case: Case, metafunc: pytest.Metafunc) -> Sequence[str]:
    """Both; but other methods and shapes of a backend run a test with one of them, half of their tests with each.

    A method decides in code that is the same for both runtimes, and the adapters of the backend run all tests with its
    default method.
    """
    if case not in OTHER_METHODS or metafunc.config.getoption("--all-runtimes"):
        return RUNTIMES
    return (RUNTIMES[zlib.crc32(f"{metafunc.definition.name} {case.name}".encode()) % len(RUNTIMES)],)


@pytest.fixture
def store_url(case: Case, tmp_path: Path) -> str:
    return case.fresh_url(tmp_path)


@pytest.fixture
def lab(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(case.fresh_url(tmp_path), request.param, shows_waiters=case.shows_waiters)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """For tests of a backend's verbs, without the engine."""
    store = Store(store_url)
    yield store
    store.close()
