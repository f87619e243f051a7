"""Shrinking: reduce a failing run to a short and simple one with the same failure.

First the plan is reduced: to fewer kinds of faults, fewer clients and rounds, and less variety. A smaller plan uses
decisions differently, so it is run with the recorded decisions and then with some seeds. Then the decisions are
reduced: numbers are cut off at the end, set to zero (the harmless choice), removed, or lowered. A change is kept if the
run still fails in the same way. All changes are repeated until none of them helps.

The budget is a number of runs, not of seconds, so the same failure always shrinks to the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.run import Plan, Run, run

RUNS = 3000  # the default budget
_LEAP_SEEDS, _STEP_SEEDS = 40, 20  # number of seeds with which each smaller plan is run

Progress = Callable[[int, "Shrunk"], None]


class Shrunk(NamedTuple):
    """A failing run; repeat it with `run(plan, decisions=decisions)`."""

    plan: Plan
    decisions: tuple[int, ...]
    run: Run
    runs: int = 0  # number of runs that shrinking took


def shrink(plan: Plan, failing: Run, *, runs: int = RUNS, progress: Progress | None = None) -> Shrunk:
    """The simplest run found with the same failure.

    Raises:
        ValueError: the run does not fail.
    """
    if failing.failure is None:
        raise ValueError("only a run that fails can be shrunk")
    return _Shrinker(plan, failing, runs, progress).result()


class _BudgetSpent(Exception):
    """The budget of runs is spent."""


class _Shrinker:
    """The best run so far, and the steps to a simpler one."""

    def __init__(self, plan: Plan, failing: Run, budget: int, progress: Progress | None) -> None:
        self._failure = failing.failure
        self._budget = budget
        self._runs = 0
        self._progress = progress
        self._seen: set[tuple[int, ...]] = set()
        self.best = _with_drawn_faults(plan, failing)

    def result(self) -> Shrunk:
        try:
            before: Shrunk | None = None
            while before is not self.best:
                before = self.best
                self._simplify_plan()
                self._simplify_decisions()
        except _BudgetSpent:
            pass
        return self.best._replace(runs=self._runs)

    # ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _simplify_plan(self) -> None:
        self._take_first_that_fails(_leaps(self.best.plan, self.best.run), _LEAP_SEEDS)
        while self._take_first_that_fails(_steps(self.best.plan, self.best.run), _STEP_SEEDS):
            pass

    def _take_first_that_fails(self, plans: Iterator[Plan], seeds: int) -> bool:
        """Make the first of these plans that fails the best one. Returns False if none fails."""
        return any(
            self._fails(plan, self.best.decisions) or any(self._fails(plan, seed=seed) for seed in range(seeds))
            for plan in plans
        )

    # ── the decisions ────────────────────────────────────────────────────────────────────────────────────────────

    def _simplify_decisions(self) -> None:
        before: tuple[int, ...] | None = None
        while before != self.best.decisions:
            before = self.best.decisions
            self._truncate()
            self._change_chunks(
                lambda decisions, start, end: (*decisions[:start], *(0,) * (end - start), *decisions[end:])
            )
            self._change_chunks(lambda decisions, start, end: (*decisions[:start], *decisions[end:]))
            self._lower()

    def _truncate(self) -> None:
        """Cut off the end: half of the decisions, then smaller parts."""
        part = len(self.best.decisions) // 2
        while part:
            if not self._is_simpler(self.best.decisions[:-part]):
                part //= 2
            part = min(part, len(self.best.decisions))

    def _change_chunks(self, change: Callable[[tuple[int, ...], int, int], tuple[int, ...]]) -> None:
        """Change large parts first, then smaller ones, from the end to the start."""
        size = max(1, len(self.best.decisions) // 2)
        while size:
            end = len(self.best.decisions)
            while end > 0:
                start = max(0, end - size)
                if any(self.best.decisions[start:end]):
                    self._is_simpler(change(self.best.decisions, start, end))
                end = min(start, len(self.best.decisions))
            size //= 2

    def _lower(self) -> None:
        """Lower each number by bisection to a smaller one that still fails."""
        index = 0
        while index < len(self.best.decisions):
            low, high = 0, self.best.decisions[index]
            while low < high and index < len(self.best.decisions):
                middle = (low + high) // 2
                decisions = self.best.decisions
                if self._is_simpler((*decisions[:index], middle, *decisions[index + 1 :])):
                    high = middle
                else:
                    low = middle + 1
            index += 1

    def _is_simpler(self, decisions: Sequence[int]) -> bool:
        decisions = _stripped(decisions)
        if decisions in self._seen or _weight(decisions) >= _weight(self.best.decisions):
            return False
        self._seen.add(decisions)
        return self._fails(self.best.plan, decisions)

    def _fails(self, plan: Plan, decisions: Sequence[int] = (), *, seed: int | None = None) -> bool:
        """Run this plan. If it fails in the same way, it becomes the best run."""
        if self._runs >= self._budget:
            raise _BudgetSpent
        self._runs += 1
        again = run(plan, seed, decisions)
        is_same = again.failure == self._failure
        if is_same:
            # Decisions that were not used need not be kept.
            self.best = Shrunk(
                plan, _stripped(again.decisions if seed is not None else again.decisions[: len(decisions)]), again
            )
        if self._progress is not None:
            self._progress(self._runs, self.best)
        return is_same


def _with_drawn_faults(plan: Plan, failing: Run) -> Shrunk:
    """The same run, with a plan that has exactly the kinds of faults that the run drew."""
    drawn = 0 if plan.enable >= 1.0 else len(faults_.enabled(plan.possible_faults))
    same = replace(plan, faults=failing.faults, enable=1.0)
    return Shrunk(same, _stripped(failing.decisions[drawn:]), failing)


def _leaps(plan: Plan, failing: Run) -> Iterator[Plan]:
    """Much smaller plans, the smallest first, with only the faults that happened."""
    faults = faults_.only(plan.faults, frozenset(kind for kind, count in failing.happened.items() if count))
    for clients in range(1, min(4, plan.workload.clients)):
        for rounds in (1, 2, 4):
            for kind in plan.workload.kinds:
                workload = replace(
                    plan.workload,
                    clients=clients,
                    rounds=min(rounds, plan.workload.rounds),
                    kinds=(kind,),
                    variety=False,
                )
                yield replace(plan, faults=faults, workload=workload)


def _steps(plan: Plan, failing: Run) -> Iterator[Plan]:
    """Plans that are simpler in one way each, the largest steps first."""
    kinds = faults_.enabled(plan.faults)
    happened = [kind for kind in kinds if failing.happened.get(kind)]
    if len(happened) < len(kinds):
        yield replace(plan, faults=faults_.only(plan.faults, frozenset(happened)))
    for kind in happened:
        yield replace(plan, faults=faults_.only(plan.faults, frozenset(kinds) - {kind}))
    workload = plan.workload
    if workload.variety:
        yield replace(plan, workload=replace(workload, variety=False))
    if len(workload.kinds) > 1:
        for name in workload.kinds:
            yield replace(plan, workload=replace(workload, kinds=(name,)))
    if len(workload.primitives) > 1:
        for name in workload.primitives:
            yield replace(plan, workload=replace(workload, primitives=(name,)))
    for clients in range(1, workload.clients):
        yield replace(plan, workload=replace(workload, clients=clients))
    for rounds in range(1, workload.rounds):
        yield replace(plan, workload=replace(workload, rounds=rounds))


def _weight(decisions: Sequence[int]) -> tuple[int, int, int]:
    """A simpler list weighs less: fewer numbers other than 0, then fewer numbers, then smaller ones."""
    return len(decisions) - decisions.count(0), len(decisions), sum(decisions)


def _stripped(decisions: Sequence[int]) -> tuple[int, ...]:
    """Without trailing zeros, which are the default after the end of the list."""
    end = len(decisions)
    while end and decisions[end - 1] == 0:
        end -= 1
    return tuple(decisions[:end])
