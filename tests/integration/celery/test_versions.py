"""Hazard: `holdfast.celery` does not work with a version of Celery that pip accepts for `holdfast[celery]`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.versions import ROOT, assert_tests_pass, install

OLDEST = {"celery": "5.5.0", "kombu": "5.5.2", "billiard": "4.2.1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param("test_celery or interrupts", id="one worker"),
        pytest.param("turns or gevent_fails or duplicate_calls", id="more workers", marks=pytest.mark.extra),
    ],
)
def test_the_oldest_version_passes_the_same_tests(names: str, tmp_path: Path) -> None:
    """Runs some of the tests with workers. The others need an option of kombu that this version does not have."""
    assert_tests_pass(
        install(tmp_path, OLDEST),
        OLDEST,
        "tests/unit/test_celery.py",
        "tests/integration/celery/test_worker.py",
        "-k",
        names,
    )


def test_pip_installs_nothing_older() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert extras["celery"] == [f"celery>={OLDEST['celery'].removesuffix('.0')}"]
