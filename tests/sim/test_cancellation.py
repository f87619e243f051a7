"""A cancellation at a bad point leaves a ticket on the server that is never removed."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast_lab.sim.cancellation import cancellations
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import Plan

SINGLE = {"acquire, free", "acquire, busy", "acquire, timeout", "release", "renew", "keeper"}
AGAIN = {"acquire again, free", "release again"}
SEVERAL = {"acquire all, free", "acquire all, busy", "acquire all, timeout", "release all", "renew all"}
CALLS = SINGLE | AGAIN | SEVERAL

# `make sim` cancels a call at each suspension, on all backends. On some backends a call suspends ten times as often.
STEPS = {"memory": 1, "redlock": 16, "mysql": 36, "memcached": 8, "zookeeper": 6, "mysql-row": 6}
EVERY = 3  # every third time and lost reply of a call is tested; in memory all are


@pytest.mark.parametrize(
    "backend",
    [
        *("memory", "sqlite", "redis", "redlock", "memcached", "zookeeper"),
        *("postgresql", "postgresql-advisory", "mysql", "mysql-row"),
    ],
)
def test_a_call_leaves_no_ticket_when_it_is_cancelled(backend: str) -> None:
    step, every = STEPS.get(backend, 2), 1 if backend == "memory" else EVERY
    tried: Counter[str] = Counter()
    for result in cancellations(Plan(backend=backend), step=step, every=every):
        tried[result.case.call] += 1
        assert result.problem is None, f"{result.case}: {result.problem}"

    assert set(tried) == CALLS
    assert tried["acquire, busy"] >= 35 / step / every, (
        "it suspends at each request and wait, with and without lost replies"
    )
    assert tried["keeper"] >= 15 / step / every
    if step == 1:
        assert tried["acquire all, busy"] > tried["acquire, busy"], "it acquires the free lock before it waits"


def test_a_cancelled_call_that_leaves_its_ticket_is_found() -> None:
    plan = MUTANTS["cancelled-acquire-leaves-ticket"].apply(Plan())

    wrong = {result.case.call for result in cancellations(plan, every=EVERY) if result.problem is not None}

    assert "acquire, free" in wrong
    assert "acquire, busy" in wrong
    assert "renew" not in wrong


def test_a_cancelled_call_for_several_locks_that_leaves_tickets_is_found() -> None:
    plan = MUTANTS["lock-all-cancelled-leaves-some"].apply(Plan())

    wrong = {result.case.call for result in cancellations(plan, every=EVERY) if result.problem is not None}

    assert "acquire all, free" in wrong
    assert "acquire all, busy" in wrong
    assert not wrong & (SINGLE | AGAIN)


def test_a_cancelled_call_whose_pending_release_is_not_sent_is_found() -> None:
    plan = MUTANTS["no-pending-releases"].apply(Plan())

    assert any(result.problem is not None for result in cancellations(plan) if result.case.call == "acquire, busy")
