"""`make soak`: run the backends of stores.py in turn under load with random faults, for a given time.

Processes with threads and tasks contend for locks on private servers while they are stopped and killed, and while the
servers are stopped, killed and restarted. At the end the checkers of holdfast-lab check the observations: no two
holders, growing fences, each loss reported once. Memory, threads, descriptors, connections and rows on the server are
measured without load after a quarter of the time and at the end: they must not grow.
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
CALM = 13.0  # seconds without load before measuring: idle keepers and listeners end after 10
SETTLE_MAX = 60.0  # seconds in which every call must end after the last fault
FIRST_PART = 0.25
REPORT_EVERY = 10.0
FAULT_SECONDS = (0.1, 0.1, 0.1, 0.3, 0.3, 1.0, 1.0, 3.0, 6.0)  # some are longer than a ttl

# Allowed growth between the two measurements. A leak grows with the thousands of turns between them. A store may keep
# a few rows for each of the 24 names.
SLACK = {
    "memory": 12 << 20,
    "objects": 8_000,
    "threads": 4,
    "descriptors": 20,
    "connections": 20,
    "rows": 72,
}


class Figures(NamedTuple):
    """Resources in use without load."""

    memory: int
    objects: int
    threads: int
    descriptors: int
    connections: int
    rows: int


class Failed(Exception):
    """The soak has found a problem."""


class Soak:
    """One backend: its store, its processes, and the faults."""

    def __init__(
        self, name: str, store: Store, folder: Path, pool: WorkerPool, rng: random.Random, *, calm: float
    ) -> None:
        self._name = name
        self._calm_seconds = calm
        self._store = store
        self._folder = folder
        self._pool = pool
        self._rng = rng
        self._workers: list[Worker] = []
        self._clients: list[str] = []  # of the workers, in the same order
        self._started = 0
        # When each fault ends, and the index of its process, or -1 for a fault of a server.
        self._active: list[tuple[float, Fault, int]] = []
        self.faults = 0

    def run(self, seconds: float) -> tuple[Figures, Figures]:
        """Run the load for this long. Returns the figures of both measurements."""
        for index in range(self._store.processes):
            self._start(index)
        self._load(seconds * FIRST_PART)
        before = self._calm()
        self._load(seconds * (1 - FIRST_PART))
        after = self._calm()
        for worker in self._workers:
            self._command(worker, "end")
        return before, after

    def observations(self) -> Observations:
        return Observations.read(self._folder)

    @property
    def clients(self) -> set[str]:
        """The names of the clients that were not killed."""
        return set(self._clients)

    def _start(self, index: int) -> None:
        client = f"process-{index}.{self._started}"
        journal = self._folder / f"{client}.journal"
        seed = str(self._rng.random())
        worker = self._pool.start(self._store.url, client, str(self._started), str(journal), seed)
        self._started += 1
        self._workers[index : index + 1] = [worker]
        self._clients[index : index + 1] = [client]

    def _command(self, worker: Worker, command: str) -> dict[str, Any]:
        worker.send(command)
        answer = worker.receive(SETTLE_MAX)
        if answer["problems"]:
            raise Failed(f"a process reports an unexpected error:\n{answer['problems'][0]}")
        return answer

    # ── load and faults ──────────────────────────────────────────────────────────────────────────────────────────

    def _load(self, seconds: float) -> None:
        for worker in self._workers:
            self._command(worker, "go")
        end = now() + seconds
        reported = now()
        while now() < end:
            self._end_faults(now())
            self._begin_fault(end)
            if now() - reported > REPORT_EVERY:
                reported = now()
                _print(f"  {self._name}: {max(0.0, end - reported):.0f} s to go, {self.faults} faults so far")
            time.sleep(self._rng.uniform(0.2, 1.5))
        self._end_faults(float("inf"))

    def _begin_fault(self, end: float) -> None:
        busy = {index for _, _, index in self._active}
        until = min(end, now() + self._rng.choice(FAULT_SECONDS))
        server_faults = self._store.faults()
        if server_faults and self._rng.random() < 0.4:
            if -1 not in busy:  # one server at a time
                self._begin(self._rng.choice(server_faults), -1, until)
            return
        index = self._rng.randrange(len(self._workers))
        if index in busy:
            return
        worker = self._workers[index]
        if index > 0 and self._rng.random() < 0.3:  # process 0 is measured at the end
            worker.kill()
            self.faults += 1
            self._start(index)
            self._command(self._workers[index], "go")
        else:
            self._begin(Fault(f"process {index} stopped (SIGSTOP)", worker.stop, worker.resume), index, until)

    def _begin(self, fault: Fault, index: int, until: float) -> None:
        fault.begin()
        self.faults += 1
        self._active.append((until, fault, index))

    def _end_faults(self, at: float) -> None:
        for entry in [entry for entry in self._active if entry[0] <= at]:
            self._active.remove(entry)
            entry[1].end()

    # ── calm ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _calm(self) -> Figures:
        """Stop faults and load, wait until every call has ended and idle resources are freed, then measure."""
        for worker in self._workers:
            self._command(worker, "pause")
        end = now() + SETTLE_MAX
        for index, worker in enumerate(self._workers):
            while not self._command(worker, "idle")["idle"]:
                if now() > end:
                    self._command(worker, "stacks")
                    problem = f"a call of process {index} has not ended {SETTLE_MAX:g} s after the last fault"
                    raise Failed(f"{problem}:\n{worker.errors()}")
                time.sleep(0.1)
        time.sleep(self._calm_seconds)
        answer = self._command(self._workers[0], "sample")
        measured = {name: int(answer[name]) for name in ("memory", "objects", "threads", "descriptors")}
        return Figures(**measured, connections=connections(self._store), rows=self._store.rows())


def soak(name: str, seconds: float, seed: str, folder: Path, *, calm: float = CALM) -> None:
    """Run one backend, and print its verdict in two lines.

    Raises:
        Failed: a problem was found.
    """
    rng = random.Random(f"{seed}-{name}")  # noqa: S311  (not a secret)
    with STORES[name](folder) as store, WorkerPool(WORKER) as pool:
        session = Soak(name, store, folder, pool, rng, calm=calm)
        before, after = session.run(seconds)
        with holdfast.Client(store.url) as client:
            guarantees = client.guarantees
        observations = session.observations()
    verdict, text = judge(observations, guarantees)
    misreported = observations.misreported(session.clients)
    grown = {
        figure: (getattr(before, figure), getattr(after, figure))
        for figure, slack in SLACK.items()
        if getattr(after, figure) > getattr(before, figure) + slack
    }
    _print(
        f"{name}: {observations.leases:,} leases, {observations.lost:,} lost, {session.faults:,} faults; "
        f"exclusion and fences {'kept' if verdict.ok else 'BROKEN'}"
    )
    _print("  " + ", ".join(f"{figure} {_shown(before, figure)} -> {_shown(after, figure)}" for figure in SLACK))
    if not observations.leases:
        raise Failed("no lease was granted")
    if not verdict.ok:
        raise Failed(text)
    if misreported:
        raise Failed(f"{len(misreported)} losses were reported wrongly: {misreported[0]}")
    if grown:
        raise Failed(f"these grew: {grown}")


def _shown(figures: Figures, figure: str) -> str:
    value: int = getattr(figures, figure)
    return f"{value / (1 << 20):.1f} MiB" if figure == "memory" else f"{value:,}"


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (a program)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="in total for all backends (default: 600)")
    parser.add_argument("--backends", nargs="+", choices=STORES, default=DEFAULT, metavar="B", help=", ".join(STORES))
    parser.add_argument("--seed", default=None, help="repeats the same choice of faults (default: a new one)")
    parser.add_argument(
        "--calm", type=float, default=CALM, help=f"seconds without load before measuring (default: {CALM:g})"
    )
    options = parser.parse_args(arguments)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    share = options.seconds / len(options.backends)
    _print(f"seed {seed}; {share:.0f} s of load for each of {', '.join(options.backends)}")
    failed = []
    for name in options.backends:
        folder = Path(tempfile.mkdtemp(prefix=f"holdfast-soak-{name}-"))
        try:
            soak(name, share, seed, folder, calm=options.calm)
        except (Failed, AssertionError) as error:
            failed.append(name)
            _print(f"{name}: FAILED. The observations are in {folder}\n{error}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    _print(f"failed: {', '.join(failed)}" if failed else "All promises kept, no growth.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
