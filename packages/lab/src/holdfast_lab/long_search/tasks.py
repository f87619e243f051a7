"""The parts of a long search. One process does each of them, in seconds or minutes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast_lab.cli.request import find_mutant
from holdfast_lab.long_search.ledger import CANCELS, EXHAUSTIVE, SEEDS, Key, Record, Searched, Violation
from holdfast_lab.sim import exhaustive, redlock_configs
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.cancellation import cancellations
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.search import CHUNK, outcomes_of
from holdfast_lab.sim.workers import Call
from holdfast_lab.sim.workload import WORKLOADS

REDLOCK_SHARE = 0.3  # of the seeds: a world of redlock takes as long as three others
# Searches of another kind than random worlds. Polling makes too many requests to try every fault with each of them.
SMALL = (
    *((backend, "locks", EXHAUSTIVE) for backend in ("memory", "sqlite", "redis", "redlock", "postgresql")),
    ("memory", "lock_all", EXHAUSTIVE),
    *((backend, "locks", CANCELS) for backend in ("memory", "sqlite", "redis", "redlock", "postgresql")),
    *((backend, "locks", CANCELS) for backend in ("postgresql-advisory", "mysql", "mysql-row", "mysql-version")),
)


class Task(NamedTuple):
    """Worlds that one process searches: seeds from `first` on, or all worlds of another kind."""

    key: Key
    first: int = 0
    worlds: int = 0

    @property
    def call(self) -> Call:
        """The call that returns the record of this task, or None if the search did not complete."""
        return Call(_FUNCTIONS[self.key.kind], tuple(self))


def command_of(key: Key, seed: int | None) -> str:
    """The command that shows these worlds, or one of them."""
    worlds = f"--{key.kind}" if seed is None else f"--seed {seed}"
    code = f"--mutant {key.mutant}" if key.mutant else f"--backend {key.backend}"
    return f"holdfast simulate {code} --workload {key.workload} {worlds}"


def seeds_of(backend: str, seeds: int, first: int = 0) -> range:
    """The seeds of a backend, if the others have `seeds` from `first` on."""
    return range(first, first + (round(seeds * REDLOCK_SHARE) if backend == "redlock" else seeds))


def small_tasks(code: str, backends: Collection[str], mutant: str) -> list[Task]:
    """The searches that are no random worlds."""
    return [Task(Key(code, *small, mutant)) for small in SMALL if small[0] in backends]


def seed_tasks(keys: Sequence[Key], seeds: int, searched: Callable[[Key], Searched], first: int = 0) -> Iterator[Task]:
    """The seeds that were not searched yet. All keys advance together, so that an early end leaves no gap."""
    return heapq.merge(
        *(_chunks(key, seeds_of(key.backend, seeds, first), searched(key)) for key in keys),
        key=lambda task: (task.first - first) / (REDLOCK_SHARE if task.key.backend == "redlock" else 1),
    )


def _chunks(key: Key, wanted: range, searched: Searched) -> Iterator[Task]:
    for missing in list(searched.missing(wanted)):
        for first in range(missing.start, missing.stop, CHUNK):
            yield Task(key, first, min(CHUNK, missing.stop - first))


# ── in the worker processes ──────────────────────────────────────────────────────────────────────────────────────────


def _plan_of(key: Key) -> Plan:
    plan = Plan(backend=key.backend, workload=WORKLOADS[key.workload], faults=faults_.ALL)
    return find_mutant(key.mutant).apply(plan) if key.mutant else plan


def _search_seeds(key: Key, first: int, worlds: int) -> Record:
    began = time.process_time()
    outcomes = outcomes_of(_plan_of(key), range(first, first + worlds))
    violations = tuple(Violation(each.failure, each.seed) for each in outcomes if each.failure is not None)
    return Record(key, first, worlds, time.process_time() - began, violations)


def _search_all(key: Key, *_: Any) -> Record | None:
    began, runs = time.process_time(), 0
    for size in _sizes(_plan_of(key), is_redlock=key.backend == "redlock"):
        runs += size.runs
        if size.broken:
            violations = tuple(Violation(failure, None) for failure in size.broken)
            return Record(key, 0, runs, time.process_time() - began, violations)
        if not size.is_complete:
            return None
    return Record(key, 0, runs, time.process_time() - began)


class _Size(NamedTuple):
    """The result of the exhaustive search of one small world."""

    runs: int
    broken: list[str]
    is_complete: bool


def _sizes(plan: Plan, *, is_redlock: bool) -> Iterator[_Size]:
    if is_redlock:
        for config in redlock_configs.SIZES:
            fences = redlock_configs.search_fences(plan, config)
            yield _Size(fences.states, [fences.broken] if fences.broken is not None else [], fences.is_complete)
    else:
        for small in exhaustive.SIZES:
            searched = exhaustive.search_all(plan, small)
            yield _Size(searched.runs, [run.failure for run in searched.failures], searched.is_complete)


def _cancel_everywhere(key: Key, *_: Any) -> Record:
    began, count = time.process_time(), 0
    violations = []
    for result in cancellations(_plan_of(key)):
        count += 1
        if result.problem is not None:
            violations.append(Violation(f"{result.case}: {result.problem}", None))
    return Record(key, 0, count, time.process_time() - began, tuple(violations))


_FUNCTIONS: dict[str, Callable[..., Record | None]] = {
    SEEDS: _search_seeds,
    EXHAUSTIVE: _search_all,
    CANCELS: _cancel_everywhere,
}
