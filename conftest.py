"""The conformance suite runs on our own backends, also if one of its files or tests is an argument of pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast_lab.conformance.cases import Case

pytest_plugins = ["tests.support.forked_run"]


def pytest_holdfast_cases() -> Sequence[Case]:
    """Return the backends of tests/conformance/backends.py."""
    from tests.conformance.backends import CASES

    return CASES
