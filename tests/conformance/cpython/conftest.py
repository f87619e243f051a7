"""CPython's cases run on every backend, not on each of its shapes and methods."""

from __future__ import annotations

import pytest

from tests.conformance.backends import BACKENDS, Case


@pytest.fixture(params=BACKENDS, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    parameter: Case = request.param
    return parameter
