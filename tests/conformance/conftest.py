"""Every conformance test runs on every backend, with threads and with asyncio."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.backends import CASES, Case
from tests.conformance.lab import Lab


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(params=["threads", "asyncio"])
def lab(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    if not case.shows_waiters and "until_waiting" in request.function.__code__.co_names:
        pytest.skip(f"nobody but the waiters themselves knows who waits on {case.name}")
    return Lab(case.fresh_url(tmp_path), request.param)
