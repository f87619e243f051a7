"""Hazard: the lock is released after the response with a version of FastAPI that pip accepts for `holdfast[fastapi]`.

All other tests run with the versions of constraints.txt.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.versions import ROOT, assert_tests_pass, install

OLDEST = {"fastapi": "0.121.1", "starlette": "0.40.0"}
TOO_OLD = "0.121.0"  # of FastAPI, without the scope of `dependencies=[…]`


@pytest.mark.slow
def test_the_oldest_versions_pass_the_same_tests_and_an_older_one_is_refused(tmp_path: Path) -> None:
    environment = install(tmp_path, OLDEST)

    assert_tests_pass(environment, OLDEST, "tests/unit/web")

    source = tmp_path / "fastapi" / "__init__.py"
    source.write_text(source.read_text().replace(OLDEST["fastapi"], TOO_OLD))  # faster than to install it too
    imported = subprocess.run(
        [sys.executable, "-c", "import holdfast.fastapi"], env=environment, capture_output=True, text=True, check=False
    )
    assert imported.returncode == 1
    assert "needs FastAPI 0.121.1 or newer, not 0.121.0" in imported.stderr


def test_pip_installs_nothing_older() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert f"fastapi>={OLDEST['fastapi']}" in extras["fastapi"]
    assert extras["starlette"] == [f"starlette>={OLDEST['starlette'].removesuffix('.0')}"]
