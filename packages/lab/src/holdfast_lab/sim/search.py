"""Random search: one world for each seed, on all cores. The outcome of a seed depends only on the seed.

    totals = Totals()
    for outcome in search(Plan(), range(1000)):
        totals.add(outcome)

Outcomes are small and in the order of their seeds; `run(plan, seed)` repeats one of them with its whole history.
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

from holdfast_lab.sim.run import Plan, Run, run

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

CHUNK = 25  # seeds that a process gets at a time: about 0.1 s of work


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


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def search(plan: Plan, seeds: Iterable[int], *, jobs: int | None = None) -> Generator[Outcome]:
    """Yield the outcome of every seed, in order. Close the iterator to end it early.

    A plan that cannot be sent to other processes, because its classes cannot be imported, is searched in this process.
    """
    remaining = iter(seeds)
    chunks = iter(lambda: list(itertools.islice(remaining, CHUNK)), [])
    jobs = usable_cores() if jobs is None else jobs
    if jobs == 1 or not _can_be_pickled(plan):
        for chunk in chunks:
            yield from _outcomes(plan, chunk)
    else:
        with _workers(plan, jobs) as pipes:
            yield from _in_order(chunks, pipes)


def _in_order(chunks: Iterator[Sequence[int]], pipes: Sequence[Connection]) -> Iterator[Outcome]:
    """Send chunks to free workers; yield their outcomes in the order of the chunks."""
    busy: dict[Connection, int] = {}
    done: dict[int, list[Outcome]] = {}
    numbered = enumerate(chunks)
    sent = next_chunk = 0
    free = list(pipes)
    while True:
        for pipe, (number, chunk) in zip(free, numbered, strict=False):
            pipe.send(chunk)
            busy[pipe] = number
            sent += 1
        if next_chunk == sent:
            return
        free = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
        for pipe in free:
            done[busy.pop(pipe)] = _receive(pipe)
        while next_chunk in done:
            yield from done.pop(next_chunk)
            next_chunk += 1


def _receive(pipe: Connection) -> list[Outcome]:
    try:
        outcomes: list[Outcome] = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the search has died; its output is above") from None
    return outcomes


def _can_be_pickled(plan: Plan) -> bool:
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
    """Processes that receive chunks of seeds from their pipes; all are terminated at the end."""
    context = multiprocessing.get_context("spawn")  # a forked child inherits locks of threads that it does not have
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
            pipe.close()  # a worker that waits for seeds ends by itself
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Workers start with SIGINT ignored: this process handles Ctrl-C and terminates them."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread may set it; workers then print a traceback at Ctrl-C
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
        return  # the search has ended
