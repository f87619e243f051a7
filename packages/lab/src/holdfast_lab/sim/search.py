"""Random search: one world for each seed, on all cores. The outcome of a seed depends only on the seed.

    totals = Totals()
    for outcome in search(Plan(), range(1000)):
        totals.add(outcome)

Outcomes are small and in the order of their seeds; `run(plan, seed)` repeats one of them with its whole history.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from holdfast_lab.sim.run import Plan, Run, run
from holdfast_lab.sim.workers import Call, call_in_workers, usable_cores

CHUNK = 25  # seeds that a process gets at a time: between 0.1 s and 3 s of work


class Outcome(NamedTuple):
    """A summary of one run."""

    seed: int
    failure: str | None  # the gravest broken promise, or the type of the error
    steps: int
    events: int
    grants: int
    losses: int
    happened: Mapping[str, int]  # faults, by their kind
    broken: Mapping[str, int]  # violations of each promise that was tested; 0 if it was kept

    @classmethod
    def of(cls, seed: int, ran: Run) -> Outcome:
        statistics = ran.verdict.statistics
        return cls(
            seed=seed,
            failure=ran.failure,
            steps=ran.steps,
            events=statistics.events,
            grants=statistics.grants,
            losses=statistics.losses,
            happened=dict(ran.happened),
            broken=ran.verdict.broken,
        )


class Totals:
    """The sum of many outcomes."""

    def __init__(self) -> None:
        self.worlds = self.steps = self.events = self.grants = self.losses = 0
        self.happened: Counter[str] = Counter()
        self.tested: Counter[str] = Counter()  # by promise: worlds that tested it
        self.broken: Counter[str] = Counter()  # by promise: worlds that broke it
        self.failing: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.steps += outcome.steps
        self.events += outcome.events
        self.grants += outcome.grants
        self.losses += outcome.losses
        self.happened.update(outcome.happened)
        self.tested.update(outcome.broken.keys())
        self.broken.update(name for name, count in outcome.broken.items() if count)
        if outcome.failure is not None:
            self.failing.append(outcome)


def search(plan: Plan, seeds: Iterable[int], *, jobs: int | None = None) -> Generator[Outcome]:
    """Yield the outcome of every seed, in order. Close the iterator to end it early.

    A plan that cannot be sent to other processes, because its classes cannot be imported, is searched in this process.
    """
    jobs = usable_cores() if jobs is None else jobs
    if jobs == 1 or not _can_be_pickled(plan):
        for seed in seeds:
            yield Outcome.of(seed, run(plan, seed))
    else:
        remaining = iter(seeds)
        chunks = iter(lambda: list(itertools.islice(remaining, CHUNK)), [])
        yield from _in_order(plan, chunks, jobs)


def _in_order(plan: Plan, chunks: Iterable[Sequence[int]], jobs: int) -> Iterator[Outcome]:
    """Search chunks in worker processes; yield their outcomes in the order of the chunks."""
    done: dict[int, list[Outcome]] = {}
    next_chunk = 0
    with closing(call_in_workers((Call(outcomes_of, (plan, chunk)) for chunk in chunks), jobs)) as results:
        for number, outcomes in results:
            done[number] = outcomes
            while next_chunk in done:
                yield from done.pop(next_chunk)
                next_chunk += 1


def _can_be_pickled(plan: Plan) -> bool:
    try:
        pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError):
        return False
    return True


def outcomes_of(plan: Plan, seeds: Iterable[int]) -> list[Outcome]:
    """The outcome of each of these seeds."""
    return [Outcome.of(seed, run(plan, seed)) for seed in seeds]
