"""The conformance suite of holdfast-lab on our own backends, with real servers; or on that of `--holdfast-url` only."""

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
    """The folders have tests of our own backends beside other libraries, and of CPython."""
    return (
        True
        if config.getoption("--holdfast-url") and collection_path.parent == BACKENDS.parent and collection_path.is_dir()
        else None
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The file with the backends stands for the suite, which runs on them."""
    return pytest.Package.from_parent(parent, path=SUITE) if file_path == BACKENDS else None
