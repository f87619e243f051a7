"""Hazard: a soak that cannot fail. It has to pass on a good store, and its judgement has to find every error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from tests.soak.history import Observations, judge

STRONG = Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.MACHINE)


@pytest.mark.slow
def test_a_short_soak_of_the_embedded_default_passes() -> None:
    command = [sys.executable, "-m", "tests.soak", "--seconds", "2", "--calm", "1", "--backends", "sqlite"]

    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "exclusion and fences kept" in done.stdout
    assert "All promises kept, no growth." in done.stdout


def observed(folder: Path, *lines: dict[str, object]) -> Observations:
    (folder / "process.journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Observations.read(folder)


def granted(ticket: int, at: float, fence: int, client: str) -> dict[str, object]:
    shape = {"lock": "one", "limit": 1, "exclusive": True, "group": None}
    return {"kind": "granted", "at": at, "client": client, "ticket": ticket, "fence": fence, **shape}


def held(ticket: int, at: float, client: str) -> dict[str, object]:
    return {"kind": "held", "at": at, "client": client, "ticket": ticket, "deadline": None}


def test_two_holders_at_a_time_are_found(tmp_path: Path) -> None:
    observations = observed(
        tmp_path, granted(1, 1.0, 1, "a"), granted(2, 2.0, 2, "b"), held(1, 2.1, "a"), held(2, 2.2, "b")
    )

    verdict, text = judge(observations, STRONG)

    assert not verdict.ok
    assert "mutual exclusion" in text


def test_a_grant_after_the_last_observation_of_the_former_holder_is_no_overlap(tmp_path: Path) -> None:
    observations = observed(
        tmp_path, granted(1, 1.0, 1, "a"), held(1, 1.9, "a"), granted(2, 2.0, 2, "b"), held(2, 2.2, "b")
    )

    verdict, _ = judge(observations, STRONG)

    assert verdict.ok


def test_a_fence_that_goes_back_is_found(tmp_path: Path) -> None:
    observations = observed(
        tmp_path, granted(1, 1.0, 7, "a"), held(1, 1.5, "a"), granted(2, 2.0, 6, "b"), held(2, 2.2, "b")
    )

    verdict, text = judge(observations, STRONG)

    assert not verdict.ok
    assert "growing fences" in text


@pytest.mark.parametrize("times", [0, 2])
def test_a_loss_that_is_not_reported_exactly_once_is_found(times: int, tmp_path: Path) -> None:
    reported = {"kind": "lost", "at": 3.0, "client": "a", "lock": "one", "fence": 1}
    ended = {"kind": "released", "at": 3.0, "client": "a", "ticket": 1, "outcome": "lost"}
    observations = observed(tmp_path, granted(1, 1.0, 1, "a"), *[reported] * times, ended)

    assert observations.misreported({"a"}) == [f"the loss of 'one' (fence 1) of a was reported {times} times"]
    assert observations.misreported(set()) == []
