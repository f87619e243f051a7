"""Hazard: fences go back without a warning, because the servers have older data than before."""

from __future__ import annotations

import logging

import pytest

from holdfast.backends.zookeeper.protocol.fences import Fences
from holdfast.core.events import logger


@pytest.fixture
def fences() -> Fences:
    fences = Fences("zookeeper://test")
    fences.check_fence(10, before=fences.greatest)
    return fences


def test_fences_that_grow_are_no_problem(fences: Fences) -> None:
    fences.check_fence(11, before=fences.greatest)

    assert (fences.greatest, fences.problem) == (11, "")


def test_answers_out_of_order_are_no_problem(fences: Fences) -> None:
    fences.check_fence(12, before=10)
    fences.check_fence(11, before=10)  # requested before the other answer arrived

    assert (fences.greatest, fences.problem) == (12, "")


@pytest.mark.parametrize("fence", [3, 10])
def test_a_fence_is_reported_once_when_it_is_not_greater_than_before(
    fences: Fences, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fence: int
) -> None:
    monkeypatch.setattr(logger(), "post", lambda call: call())  # at once, not in the background

    with caplog.at_level(logging.WARNING):
        fences.check_fence(fence, before=fences.greatest)
        fences.check_fence(fence, before=fences.greatest)

    assert "fences went back" in fences.problem
    assert len(caplog.records) == 1


def test_the_problem_ends_when_a_fence_is_greater_than_all_before(fences: Fences) -> None:
    fences.observe(20)
    fences.check_fence(3, before=fences.greatest)
    fences.check_fence(4, before=3)
    assert fences.problem

    fences.check_fence(21, before=fences.greatest)

    assert not fences.problem
