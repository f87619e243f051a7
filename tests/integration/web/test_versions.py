"""Hazard: the lock is released after the response with a version of FastAPI that pip accepts for `holdfast[fastapi]`.

All other tests run with the versions of constraints.txt.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.server_process import missing

ROOT = Path(__file__).parents[3]
OLDEST = {"fastapi": "0.121.1", "starlette": "0.40.0"}
TOO_OLD = {"fastapi": "0.121.0", "starlette": "0.40.0"}  # without the scope of `dependencies=[…]`


def install(folder: Path, versions: dict[str, str]) -> dict[str, str]:
    """Install these versions into a folder. Returns the environment of a process that uses them."""
    wanted = [f"{package}=={version}" for package, version in versions.items()]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--retries", "1", "--no-deps", "--target", folder, *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        missing(f"pip cannot install {' and '.join(wanted)}: {done.stderr.strip().splitlines()[-1:]}")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_the_oldest_versions_pass_the_same_tests(tmp_path: Path) -> None:
    environment = install(tmp_path, OLDEST)
    versions = "import fastapi, starlette; print(fastapi.__version__, starlette.__version__)"
    used = subprocess.run(
        [sys.executable, "-c", versions], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert used == [*OLDEST.values()]

    # Newer versions of Python and of anyio warn of things that these versions do.
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "tests/unit/web"]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert tests.returncode == 0, tests.stdout
    assert re.search(r"\d+ passed", tests.stdout)


def test_pip_installs_nothing_older() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert f"fastapi>={OLDEST['fastapi']}" in extras["fastapi"]
    assert extras["starlette"] == [f"starlette>={OLDEST['starlette'].removesuffix('.0')}"]


@pytest.mark.slow
def test_a_version_that_cannot_release_before_the_response_is_refused(tmp_path: Path) -> None:
    environment = install(tmp_path, TOO_OLD)

    imported = subprocess.run(
        [sys.executable, "-c", "import holdfast.fastapi"], env=environment, capture_output=True, text=True, check=False
    )

    assert imported.returncode == 1
    assert "needs FastAPI 0.121.1 or newer, not 0.121.0" in imported.stderr
