"""The conformance suite of holdfast-lab on our own backends, with real servers, or on the store of `--holdfast-url`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab import conformance
from holdfast_lab.conformance.fixtures import (
    lab,
    pytest_generate_tests,
    store,
    store_url,
)

__all__ = [
    "lab",
    "pytest_generate_tests",
    "store",
    "store_url",
]

SUITE = Path(conformance.__path__[0])
BACKENDS = Path(__file__).with_name("backends.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--holdfast-url`, ignore the folders beside backends.py: their tests run on our own backends only."""
    return (
        True
        if config.getoption("--holdfast-url") and collection_path.parent == BACKENDS.parent and collection_path.is_dir()
        else None
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the suite in place of backends.py, because the suite is in another distribution."""
    return pytest.Package.from_parent(parent, path=SUITE) if file_path == BACKENDS else None
