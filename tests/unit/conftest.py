"""Unit tests of the engine run on a backend with planned faults, with threads and with asyncio."""

from __future__ import annotations

import uuid

import pytest

from holdfast.url import SCHEMES, Scheme
from holdfast_lab.conformance.lab import Lab
from tests.support.faulty import Faults


@pytest.fixture
def faulty_url(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SCHEMES, "faulty", Scheme("tests.support.faulty"))
    return f"faulty://{uuid.uuid4().hex}"


@pytest.fixture
def faults(faulty_url: str) -> Faults:
    return Faults.of(faulty_url)


@pytest.fixture(params=["threads", "asyncio"])
def lab(faulty_url: str, request: pytest.FixtureRequest) -> Lab:
    return Lab(faulty_url, request.param)
