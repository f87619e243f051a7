"""Hazard: a run of the quick tests takes long, because the costly tests that are marked `extra` are among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "tests/integration/django"  # it has tests of both kinds


def selected(expression: str) -> set[str]:
    """The tests of the folder that pytest selects by this expression of markers."""
    options = ["-p", "no:cacheprovider", "--collect-only", "-q", "-m", expression]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, FOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_extra_tests_are_selected_only_by_an_expression_that_names_them() -> None:
    extra = selected("extra")

    assert extra
    assert selected("not slow").isdisjoint(extra)
