"""A cancellation in the wrong place leaves a ticket on the server that nobody will ever take away."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.sim.cancellation import cancellations
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.run import Plan

ONE = {"acquire, free", "acquire, busy", "acquire, timeout", "release", "renew", "keeper"}
SEVERAL = {"acquire all, free", "acquire all, busy", "acquire all, timeout", "release all", "renew all"}
CALLS = ONE | SEVERAL


@pytest.mark.parametrize(
    "backend",
    [
        *("memory", "sqlite", "redis", "redlock", "memcached", "zookeeper"),
        *("postgresql", "postgresql-advisory", "mysql", "mysql-row"),
    ],
)
def test_no_call_leaves_anything_behind_wherever_it_is_cancelled(backend: str) -> None:
    tried: Counter[str] = Counter()
    for one in cancellations(Plan(backend=backend)):
        tried[one.case.call] += 1
        assert one.problem is None, f"{one.case}: {one.problem}"

    assert set(tried) == CALLS
    assert tried["acquire, busy"] >= 40, "it suspends when it asks, waits, asks again; with and without losses"
    assert tried["keeper"] >= 15
    assert tried["acquire all, busy"] > tried["acquire, busy"], "it has what is free before it waits"


def test_a_cancelled_call_that_leaves_its_ticket_behind_is_found() -> None:
    plan = MUTANTS["cancelled-acquire-leaves-ticket"].apply(Plan())

    wrong = {one.case.call for one in cancellations(plan) if one.problem is not None}

    assert "acquire, free" in wrong
    assert "acquire, busy" in wrong
    assert "renew" not in wrong


def test_a_cancelled_call_for_several_locks_that_leaves_some_behind_is_found() -> None:
    plan = MUTANTS["lock-all-cancelled-leaves-some"].apply(Plan())

    wrong = {one.case.call for one in cancellations(plan) if one.problem is not None}

    assert "acquire all, free" in wrong
    assert "acquire all, busy" in wrong
    assert not wrong & ONE


def test_a_cancelled_call_whose_debt_nobody_pays_is_found() -> None:
    plan = MUTANTS["no-pending-releases"].apply(Plan())

    assert any(one.problem is not None for one in cancellations(plan) if one.case.call == "acquire, busy")
