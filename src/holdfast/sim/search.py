"""Random search: one world for each seed, on all cores. Which seeds fail does not depend on how many there are.

    totals = Totals()
    for outcome in search(Plan(), range(1000)):
        totals.add(outcome)

Outcomes come in the order of their seeds and are small; `run(plan, seed)` gives the whole story of one of them again.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NamedTuple

from holdfast.sim.run import Plan, Run, run

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

CHUNK = 25  # seeds that a process gets at once: a tenth of a second's work


class Outcome(NamedTuple):
    """What came of one world, in short."""

    seed: int
    failure: str | None  # the gravest promise that it broke, or the error that ended it
    steps: int
    events: int
    grants: int
    losses: int
    happened: Mapping[str, int]  # faults, by their kind
    broken: Mapping[str, int]  # how often, for every promise that was put to the test, kept ones included

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
    """What came of many."""

    def __init__(self) -> None:
        self.worlds = self.steps = self.events = self.grants = self.losses = 0
        self.happened: Counter[str] = Counter()
        self.tested: Counter[str] = Counter()  # in how many worlds each promise was put to the test
        self.broken: Counter[str] = Counter()  # in how many it was broken
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


def usable_cores() -> int:
    """How many this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def search(plan: Plan, seeds: Iterable[int], *, jobs: int | None = None) -> Generator[Outcome]:
    """Every seed's outcome, in order. Close the iterator to end it early.

    A plan that cannot be sent to other processes, because its classes were made on the fly, is searched in this one.
    """
    remaining = iter(seeds)
    chunks = iter(lambda: list(itertools.islice(remaining, CHUNK)), [])
    jobs = usable_cores() if jobs is None else jobs
    if jobs == 1 or not _can_travel(plan):
        for chunk in chunks:
            yield from _outcomes(plan, chunk)
    else:
        with _workers(plan, jobs) as pipes:
            yield from _in_order(chunks, pipes)


def _in_order(chunks: Iterator[Sequence[int]], pipes: Sequence[Connection]) -> Iterator[Outcome]:
    """Hand out chunks to whoever is free; hand on what comes back in the order of the chunks."""
    at_work: dict[Connection, int] = {}
    done: dict[int, list[Outcome]] = {}
    numbered = enumerate(chunks)
    given = next_out = 0
    free = list(pipes)
    while True:
        for pipe, (number, chunk) in zip(free, numbered, strict=False):
            pipe.send(chunk)
            at_work[pipe] = number
            given += 1
        if next_out == given:
            return
        free = [pipe for pipe in wait(list(at_work)) if isinstance(pipe, Connection)]
        for pipe in free:
            done[at_work.pop(pipe)] = _received(pipe)
        while next_out in done:
            yield from done.pop(next_out)
            next_out += 1


def _received(pipe: Connection) -> list[Outcome]:
    try:
        outcomes: list[Outcome] = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the search has died; its own words are above") from None
    return outcomes


def _can_travel(plan: Plan) -> bool:
    try:
        pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError):
        return False
    return True


def _outcomes(plan: Plan, seeds: Iterable[int]) -> Iterator[Outcome]:
    return (Outcome.of(seed, run(plan, seed)) for seed in seeds)


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _workers(plan: Plan, jobs: int) -> Iterator[list[Connection]]:
    """Processes that take chunks of seeds from their pipes; they are gone when this ends, however it ends."""
    context = multiprocessing.get_context("spawn")  # a forked child would inherit locks, and threads that are not there
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        with _no_interrupts():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                process = context.Process(target=_work, args=(plan, theirs), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # who waits for more seeds ends by itself
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """A Ctrl-C is for this process, which ends the others: they are born deaf to it."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone may say so: then a Ctrl-C makes them print what it hit
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(plan: Plan, pipe: Connection) -> None:
    try:
        while True:
            pipe.send(list(_outcomes(plan, pipe.recv())))
    except (EOFError, BrokenPipeError):
        return  # nobody wants any more
