"""Hazard: a program without a framework cannot import the probes, or gets no hint of what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"


def import_without_packages(module: str) -> subprocess.CompletedProcess[str]:
    """Import the module in a Python that has the standard library and holdfast only."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import {module}"
    return subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=False)


def test_the_probes_need_no_framework() -> None:
    imported = import_without_packages("holdfast.asgi")

    assert imported.returncode == 0, imported.stderr


@pytest.mark.parametrize("framework", ["starlette", "fastapi", "celery", "django"])
def test_a_missing_framework_is_named_with_the_command_that_installs_it(framework: str) -> None:
    imported = import_without_packages(f"holdfast.{framework}")

    assert imported.returncode == 1
    assert f"pip install 'holdfast[{framework}]'" in imported.stderr
