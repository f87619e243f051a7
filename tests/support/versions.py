"""Run tests with older versions of packages than those of constraints.txt, installed in a separate folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.server_process import missing

ROOT = Path(__file__).parents[2]


def install(folder: Path, versions: Mapping[str, str]) -> dict[str, str]:
    """Install these versions. Returns the environment of a process that uses them."""
    wanted = [f"{package}=={version}" for package, version in versions.items()]
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--retries", "1", "--no-deps", "--target", folder, *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if pip.returncode:
        missing(f"pip cannot install {' and '.join(wanted)}: {pip.stderr.strip().splitlines()[-1:]}")
    return {**os.environ, "PYTHONPATH": str(folder)}


def assert_tests_pass(environment: Mapping[str, str], versions: Mapping[str, str], *arguments: str) -> None:
    """Check that processes in this environment use these versions, and run tests in such a process."""
    code = f"import {', '.join(versions)}; print({', '.join(f'{package}.__version__' for package in versions)})"
    used = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert used == [*versions.values()]

    # Newer versions of Python and of other packages emit warnings for code of these versions.
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *arguments]
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert tests.returncode == 0, tests.stdout
    assert re.search(r"\d+ passed", tests.stdout)
