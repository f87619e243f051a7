"""`make soak`: every backend in turn under load and random faults, for as long as you like.

Processes with threads and tasks contend for locks on private servers while they are stopped and killed, and while the
servers are stopped, killed and restarted. At the end checkers go over everything that was observed: no two holders,
growing fences, each loss reported once. Memory, threads, descriptors, connections and rows on the server are compared
between a calm moment after a quarter of the time and one at the end: they have to stay flat.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from tests.soak.history import Observations, judge
from tests.soak.stores import DEFAULT, STORES, Fault, Store, connections
from tests.support.processes import Worker, WorkerPool, now

WORKER = os.path.join(os.path.dirname(__file__), "worker.py")
CALM = 13.0  # seconds without load before figures are taken: idle keepers and listeners end after 10
SETTLE_MAX = 60.0  # seconds in which every call has to end once all faults are over
FIRST_PART = 0.25
REPORT_EVERY = 10.0
FAULT_SECONDS = (0.1, 0.1, 0.1, 0.3, 0.3, 1.0, 1.0, 3.0, 6.0)  # some are longer than a ttl

# What may grow between the two calm moments. A leak grows with the thousands of turns between them. A store may keep a
# few rows for each name that was ever used; there are 24 names.
SLACK = {
    "memory": 12 << 20,
    "objects": 8_000,
    "threads": 4,
    "descriptors": 20,
    "connections": 20,
    "rows": 72,
}


class Figures(NamedTuple):
    """What is in use at a calm moment."""

    memory: int
    objects: int
    threads: int
    descriptors: int
    connections: int
    rows: int


class Failed(Exception):
    """The soak has found something."""


class Soak:
    """One backend: its store, its processes, and the faults."""

    def __init__(
        self, name: str, store: Store, folder: Path, pool: WorkerPool, chance: random.Random, *, calm: float
    ) -> None:
        self._name = name
        self._calm_seconds = calm
        self._store = store
        self._folder = folder
        self._crew = pool
        self._chance = chance
        self._workers: list[Worker] = []
        self._clients: list[str] = []  # of the workers, in the same order
        self._started = 0
        self._active: list[tuple[float, Fault, int]] = []  # when each fault ends, and the place that it concerns
        self.faults = 0

    def run(self, seconds: float) -> tuple[Figures, Figures]:
        """Load for so long. Returns the figures of the two calm moments."""
        for place in range(self._store.processes):
            self._start(place)
        self._load(seconds * FIRST_PART)
        before = self._calm()
        self._load(seconds * (1 - FIRST_PART))
        after = self._calm()
        for worker in self._workers:
            self._tell(worker, "end")
        return before, after

    def observations(self) -> Observations:
        return Observations.read(sorted(self._folder.glob("*.history")))

    @property
    def clients(self) -> set[str]:
        """Those that ended in order."""
        return set(self._clients)

    def _start(self, place: int) -> None:
        client = f"process-{place}.{self._started}"
        history = self._folder / f"{client}.history"
        first_ticket = self._started * 10_000_000
        self._started += 1
        seed = str(self._chance.random())
        worker = self._crew.start(self._store.url, client, str(first_ticket), str(history), seed)
        self._workers[place : place + 1] = [worker]
        self._clients[place : place + 1] = [client]

    def _tell(self, worker: Worker, command: str) -> dict[str, Any]:
        worker.send(command)
        answer = worker.receive(SETTLE_MAX)
        if answer["problems"]:
            raise Failed(f"a process reports an unexpected error:\n{answer['problems'][0]}")
        return answer

    # ── load and faults ──────────────────────────────────────────────────────────────────────────────────────────

    def _load(self, seconds: float) -> None:
        for worker in self._workers:
            self._tell(worker, "go")
        end = now() + seconds
        reported = now()
        while now() < end:
            self._end_faults(now())
            self._begin_fault(end)
            if now() - reported > REPORT_EVERY:
                reported = now()
                _say(f"  {self._name}: {max(0.0, end - reported):.0f} s to go, {self.faults} faults so far")
            time.sleep(self._chance.uniform(0.2, 1.5))
        self._end_faults(float("inf"))

    def _begin_fault(self, end: float) -> None:
        busy = {place for _, _, place in self._active}
        until = min(end, now() + self._chance.choice(FAULT_SECONDS))
        server_faults = self._store.faults()
        if server_faults and self._chance.random() < 0.4:
            if -1 not in busy:  # one server at a time
                self._begin(self._chance.choice(server_faults), -1, until)
            return
        place = self._chance.randrange(len(self._workers))
        if place in busy:
            return
        worker = self._workers[place]
        if place > 0 and self._chance.random() < 0.3:  # the first process lives to the end, to have its memory measured
            worker.kill()
            self.faults += 1
            self._start(place)
            self._tell(self._workers[place], "go")
        else:
            self._begin(Fault(f"process {place} stopped (SIGSTOP)", worker.stop, worker.resume), place, until)

    def _begin(self, fault: Fault, place: int, until: float) -> None:
        fault.begin()
        self.faults += 1
        self._active.append((until, fault, place))

    def _end_faults(self, at: float) -> None:
        for entry in [entry for entry in self._active if entry[0] <= at]:
            self._active.remove(entry)
            entry[1].end()

    # ── calm ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _calm(self) -> Figures:
        """No fault, no load: every call has to end, and what is not needed has to go."""
        for worker in self._workers:
            self._tell(worker, "pause")
        end = now() + SETTLE_MAX
        for place, worker in enumerate(self._workers):
            while not self._tell(worker, "idle")["idle"]:
                if now() > end:
                    self._tell(worker, "stacks")
                    problem = f"a call of process {place} has not ended {SETTLE_MAX:g} s after the last fault"
                    raise Failed(f"{problem}:\n{worker.errors()}")
                time.sleep(0.1)
        time.sleep(self._calm_seconds)
        answer = self._tell(self._workers[0], "sample")
        measured = {name: int(answer[name]) for name in ("memory", "objects", "threads", "descriptors")}
        return Figures(**measured, connections=connections(self._store), rows=self._store.rows())


def soak(name: str, seconds: float, seed: str, folder: Path, *, calm: float = CALM) -> None:
    """One backend, and its judgement in two lines.

    Raises:
        Failed: says what was found.
    """
    chance = random.Random(f"{seed}-{name}")  # noqa: S311  (not a secret)
    with STORES[name](folder) as store, WorkerPool(WORKER) as pool:
        running = Soak(name, store, folder, pool, chance, calm=calm)
        before, after = running.run(seconds)
        with holdfast.Client(store.url) as client:
            guarantees = client.guarantees
        observations = running.observations()
    verdict, words = judge(observations, guarantees)
    untold = observations.untold(running.clients)
    grown = {
        figure: (getattr(before, figure), getattr(after, figure))
        for figure, slack in SLACK.items()
        if getattr(after, figure) > getattr(before, figure) + slack
    }
    _say(
        f"{name}: {len(observations.leases):,} leases, {observations.lost:,} lost, {running.faults:,} faults; "
        f"exclusion and fences {'kept' if verdict.ok else 'BROKEN'}"
    )
    _say("  " + ", ".join(f"{figure} {_shown(before, figure)} -> {_shown(after, figure)}" for figure in SLACK))
    if not observations.leases:
        raise Failed("not one lease was granted")
    if not verdict.ok:
        raise Failed(words)
    if untold:
        raise Failed(f"{len(untold)} losses were reported wrongly: {untold[0]}")
    if grown:
        raise Failed(f"these grew: {grown}")


def _shown(figures: Figures, figure: str) -> str:
    value: int = getattr(figures, figure)
    return f"{value / (1 << 20):.1f} MiB" if figure == "memory" else f"{value:,}"


def _say(words: str) -> None:
    print(words, flush=True)  # noqa: T201  (a program)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="for all backends together (default: 600)")
    parser.add_argument("--backends", nargs="+", choices=STORES, default=DEFAULT, metavar="B", help=", ".join(STORES))
    parser.add_argument("--seed", default=None, help="repeats the same choice of faults (default: a new one)")
    parser.add_argument(
        "--calm", type=float, default=CALM, help=f"seconds without load before figures are taken (default: {CALM:g})"
    )
    given = parser.parse_args(arguments)
    seed = given.seed or str(random.SystemRandom().randrange(10**9))
    each = given.seconds / len(given.backends)
    _say(f"seed {seed}; {each:.0f} s of load for each of {', '.join(given.backends)}")
    failed = []
    for name in given.backends:
        folder = Path(tempfile.mkdtemp(prefix=f"holdfast-soak-{name}-"))
        try:
            soak(name, each, seed, folder, calm=given.calm)
        except (Failed, AssertionError) as error:
            failed.append(name)
            _say(f"{name}: FAILED. What was observed is in {folder}\n{error}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    _say(f"failed: {', '.join(failed)}" if failed else "All promises kept, and nothing grew.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
