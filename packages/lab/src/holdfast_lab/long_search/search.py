"""Runs the tasks that the ledger does not have yet, in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from holdfast_lab.long_search.ledger import SEEDS, Key, Ledger, Record, Violation
from holdfast_lab.long_search.tasks import Task, seed_tasks, seeds_of, small_tasks
from holdfast_lab.sim.workers import Call, call_in_workers


class Request(NamedTuple):
    """The backends, workloads and seeds of a search."""

    code: str
    backends: Sequence[str]
    workloads: Sequence[tuple[str, str]]  # backend and workload
    seeds: int
    shards: int  # processes
    with_small: bool  # also exhaustive search and cancellations
    stops_at_violation: bool
    mutant: str = ""
    first: int = 0  # the first seed


class State(NamedTuple):
    """The progress of a search."""

    worlds: int  # random worlds searched, by this process and before
    of: int
    small: int  # other searches completed
    small_of: int
    violations: int
    worlds_per_second: float  # of this process; 0.0 at its start

    @property
    def seconds_left(self) -> float | None:
        """The time that the random worlds will take; None if that is not known."""
        return (self.of - self.worlds) / self.worlds_per_second if self.worlds_per_second else None


class LongSearch:
    """One run of a search. It ends when the ledger has all worlds of the request."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._request = request
        self._ledger = ledger
        self._keys = [
            Key(request.code, backend, workload, SEEDS, request.mutant) for backend, workload in request.workloads
        ]
        self._small = small_tasks(request.code, request.backends, request.mutant) if request.with_small else []
        self._began: float | None = None  # the start of the first random worlds of this run
        self._worlds_before = self._worlds()
        self.incomplete: list[Key] = []  # exhaustive searches that exceeded their time

    @property
    def violations(self) -> list[tuple[Key, Violation]]:
        """All violations in the ledger, of this code and of the worlds of this request."""
        keys = [*self._keys, *(task.key for task in self._small)]
        return [(key, violation) for key in keys for violation in sorted(self._ledger.of(key).violations, key=str)]

    @property
    def state(self) -> State:
        done, seconds = self._worlds(), 0.0 if self._began is None else time.monotonic() - self._began
        return State(
            worlds=done,
            of=sum(len(seeds_of(key.backend, self._request.seeds, self._request.first)) for key in self._keys),
            small=len(self._small) - len(self._small_left()),
            small_of=len(self._small),
            violations=len(self.violations),
            worlds_per_second=(done - self._worlds_before) / seconds if seconds else 0.0,
        )

    def run(self, on_record: Callable[[Record], None]) -> None:
        """Search. `on_record` is called for each record, after it was written."""
        # The searches that take minutes come first: at the end they would leave the other processes without work.
        small = self._small_left()
        seeds = seed_tasks(self._keys, self._request.seeds, self._ledger.of, self._request.first)
        self._run([*small, *seeds], on_record)

    def _run(self, tasks: Sequence[Task], on_record: Callable[[Record], None]) -> None:
        with closing(call_in_workers(self._calls(tasks), self._request.shards)) as results:
            for number, record in results:
                if record is None:
                    self.incomplete.append(tasks[number].key)
                    continue
                self._ledger.append(record)
                on_record(record)
                if record.violations and self._request.stops_at_violation:
                    return

    def _calls(self, tasks: Iterable[Task]) -> Iterator[Call]:
        for task in tasks:
            if task.key.kind == SEEDS and self._began is None:
                self._began = time.monotonic()
            yield task.call

    def _small_left(self) -> list[Task]:
        return [task for task in self._small if not self._ledger.of(task.key).ranges]

    def _worlds(self) -> int:
        """The random worlds of this request in the ledger."""
        return sum(
            len(seeds) - sum(map(len, self._ledger.of(key).missing(seeds)))
            for key in self._keys
            for seeds in (seeds_of(key.backend, self._request.seeds, self._request.first),)
        )
