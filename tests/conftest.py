"""For all tests: coroutine tests run on a new event loop, and a dropped lease causes a warning in its own test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast_lab.conformance.fixtures import (
    _collect_dropped_leases,
    _interruptible,
    _private_default_store,
    caplog,
    pytest_pyfunc_call,
    tmp_path,
)
from tests.support.processes import WORKER, WorkerPool

__all__ = [
    "_collect_dropped_leases",
    "_interruptible",
    "_private_default_store",
    "caplog",
    "pytest_pyfunc_call",
    "tmp_path",
]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Processes with a client each. Their commands are the same for every store."""
    with WorkerPool(WORKER) as pool:
        yield pool


def pytest_configure() -> None:
    gc.set_threshold(10_000)  # the default takes up to a quarter of the time of a simulated world
    gc.disable()  # until the end of the collection, which creates little garbage


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_sessionfinish() -> None:
    """Pytest and the interpreter would look for garbage in all modules several times before they end."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `extra` tests, and start long tests first, so that none runs alone at the end.

    Slow tests are first, then tests that compute. Such a test takes many times as long on a busy machine, so it
    has a longer limit.
    """
    if not config.getoption("--all-methods") and "extra" not in config.option.markexpr:
        named_files = [argument for argument in config.args if argument.partition("::")[0].endswith(".py")]
        extra = [item for item in items if item.get_closest_marker("extra") is not None and not named_files]
        config.hook.pytest_deselected(items=extra)
        left_out = set(extra)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if "tests/sim/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, "tests/sim/" not in item.nodeid))
