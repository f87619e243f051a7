"""Hazard: the straight path is not simulated, so that a bug in it is never found.

A counter shows that the worlds of Redis and PostgreSQL and the cancellations run through it. The mutants of it are in
test_mutants.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.core.engine import Engine
from holdfast.core.straight_path import acquire_straight
from holdfast_lab.checking.history import Passed
from holdfast_lab.sim.cancellation import cancellations
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import Plan, run
from holdfast_lab.sim.workload import WORKLOADS


class Counted:
    """An engine type that counts its attempts on the straight path, and how they ended."""

    def __init__(self) -> None:
        counts = self.counts = Counter[str]()
        straight = self.straight = set[int]()  # the calls that were granted on it

        async def counted(engine: Any, *arguments: Any) -> Any:
            counts["begun"] += 1
            try:
                result = await acquire_straight(engine, *arguments)
            except BaseException as error:
                counts[type(error).__name__] += 1
                raise
            counts["granted" if result.lease is not None else "busy"] += 1
            if result.lease is not None and result.lease._claim.path is not None:
                straight.add(engine.runtime.task.call)
                counts["passed on to"] += result.lease._claim.passed is not None
            return result

        class CountingEngine(Engine[SimLease]):
            acquire_straight = staticmethod(counted)

            def acquire_new(self, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
                if options.get("begun") is not None:
                    counts["continued"] += 1
                return super().acquire_new(*arguments, **options)

        self.engine = CountingEngine


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
@pytest.mark.parametrize(("workload", "least"), [("free", 50), ("locks", 2)])
def test_worlds_run_through_the_straight_path(workload: str, least: int, backend: str) -> None:
    counted = Counted()
    plan = Plan(backend=backend, engine=counted.engine, workload=WORKLOADS[workload])

    for seed in range(8):
        assert run(plan, seed).failure is None

    assert counted.counts["granted"] >= least
    assert counted.counts["continued"] > 0


@pytest.mark.parametrize("backend", ["redis-local", "postgresql-local"])
def test_leases_of_the_straight_path_are_passed_on(backend: str) -> None:
    counted = Counted()
    plan = Plan(backend=backend, engine=counted.engine, workload=WORKLOADS["free_callers"])
    passed = 0

    for seed in range(8):
        ran = run(plan, seed)
        assert ran.failure is None
        passed += sum(isinstance(event, Passed) and event.giver in counted.straight for event in ran.history)
        counted.straight.clear()

    assert counted.counts["granted"] >= 50
    assert passed >= 3
    assert counted.counts["passed on to"] >= 3


@pytest.mark.parametrize("backend", ["redis", "redis-local", "postgresql", "postgresql-local"])
def test_cancellations_run_through_the_straight_path(backend: str) -> None:
    counted = Counted()

    for result in cancellations(Plan(backend=backend, engine=counted.engine), step=2, every=3):
        assert result.problem is None, f"{result.case}: {result.problem}"

    assert counted.counts["Cancelled"] >= 2
    assert counted.counts["granted"] > counted.counts["continued"] > 0


def test_an_interrupt_on_the_straight_path_that_leaves_its_ticket_is_found_by_cancellations() -> None:
    plan = MUTANTS["straight-interrupt-leaves-ticket"].apply(Plan())

    assert any(
        result.problem is not None
        for result in cancellations(plan, every=3)
        if result.case.call == "acquire again, free"
    )
