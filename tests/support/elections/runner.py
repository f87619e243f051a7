"""Run three candidates and two observers as processes, and kill and pause the leader in turn.

Afterwards the logs of all processes are merged: who led when, in which term, and which leaders were observed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import holdfast
from tests.support.elections.process import NAME, TTL
from tests.support.intervals import Turn, assert_exclusive, quantile
from tests.support.processes import Worker, WorkerPool, eventually, now

PROCESS = str(Path(__file__).with_name("process.py"))
STABLE_FOR = 0.2  # seconds that a leader must lead before a disruption


class Observation(NamedTuple):
    """A leader that an observer received, or (0, 0) for none."""

    term: int
    pid: int
    at: float


class Record(NamedTuple):
    """The log of one process."""

    pid: int
    turns: Sequence[Turn]  # one per term, from its first beat to its last
    lost: Sequence[int]  # terms
    seen: Sequence[Observation]


class Disruption(NamedTuple):
    """A kill or a pause of a leader."""

    kind: str
    term: int
    at: float


class Outcome(NamedTuple):
    """The logs of all processes and all disruptions."""

    records: Sequence[Record]
    disruptions: Sequence[Disruption]
    seconds: float

    @property
    def turns(self) -> list[Turn]:
        return sorted((turn for record in self.records for turn in record.turns), key=lambda turn: turn.acquired)

    def check(self) -> None:
        """Check that each term has one leader, that terms grow and do not overlap, and that observers agree."""
        assert_exclusive(self.turns)
        leaders: dict[int, int] = {}
        for record in self.records:
            for turn in record.turns:
                assert leaders.setdefault(turn.fence, record.pid) == record.pid, f"two led in term {turn.fence}"
        for record in self.records:
            terms = [observation.term for observation in record.seen if observation.term]
            assert all(before < after for before, after in pairwise(terms)), f"an observer went back: {terms}"
            for observation in record.seen:
                if observation.term:
                    assert leaders.setdefault(observation.term, observation.pid) == observation.pid, (
                        f"{observation} and {leaders}"
                    )
        reported = {term for record in self.records for term in record.lost}
        assert reported >= {disruption.term for disruption in self.disruptions if disruption.kind == "pause"}, (
            "a leader was not told of its loss"
        )
        observed = [{observation.term for observation in record.seen} for record in self.records if record.seen]
        assert observed
        for terms_seen in observed:
            assert terms_seen >= {disruption.term for disruption in self.disruptions}, "an observer missed a leader"

    def figures(self) -> str:
        turns = self.turns
        kinds = [disruption.kind for disruption in self.disruptions]
        gaps = [
            min(turn.acquired for turn in turns if turn.fence > disruption.term) - disruption.at
            for disruption in self.disruptions
        ]
        changes = " and ".join(str(len(record.seen)) for record in self.records if record.seen)
        return (
            f"{self.seconds:.0f} s: {kinds.count('kill')} leaders killed, {kinds.count('pause')} paused past their ttl "
            f"of {TTL:g} s; {len(turns)} terms, all growing, never two at once; next leader after "
            f"{quantile(gaps, 0.5):.2f} s (median), {max(gaps):.2f} s (most); observers saw {changes} changes"
        )


def run_election(url: str, pool: WorkerPool, folder: Path, seconds: float) -> Outcome:
    """Run the election for this many seconds."""
    logs: dict[int, Path] = {}

    def start(role: str, runtime: str) -> Worker:
        path = folder / f"{len(logs)}.log"
        worker = pool.start(url, role, runtime, str(path))
        logs[worker.pid] = path
        return worker

    runtimes = itertools.cycle(["threads", "asyncio"])
    candidates = {worker.pid: worker for worker in [start("candidate", next(runtimes)) for _ in range(3)]}
    observers = [start("observer", runtime) for runtime in ("threads", "asyncio")]
    began = now()
    with holdfast.Client(url) as client:
        election = client.election(NAME)
        disruptions: list[Disruption] = []
        for kind in _while(began + seconds, ["kill", "pause"]):
            leader = _stable_leader(election, [logs[pid] for pid in candidates])
            worker = candidates[leader.pid]
            _wait_until_observed(leader.term, [logs[observer.pid] for observer in observers])
            disruptions.append(Disruption(kind, leader.term, now()))
            if kind == "kill":
                worker.kill()
                del candidates[worker.pid]
                replacement = start("candidate", next(runtimes))
                candidates[replacement.pid] = replacement
            else:
                worker.stop()
                eventually(lambda term=leader.term: _term(election) > term)  # type: ignore[misc]  # a default
                worker.resume()
        _stable_leader(election, [logs[pid] for pid in candidates])
        for worker in (*candidates.values(), *observers):
            worker.release()
    return Outcome([_read(pid, path) for pid, path in logs.items()], disruptions, now() - began)


def _while(end: float, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the kinds in turn until `end`, each kind at least once."""
    for number, kind in enumerate(itertools.cycle(kinds)):
        if now() >= end and number >= len(kinds):
            return
        yield kind


def _term(election: holdfast.Election) -> int:
    leader = election.leader()
    return leader.term if leader else 0


def _stable_leader(election: holdfast.Election, logs: Sequence[Path]) -> holdfast.Leader:
    """Wait until a leader has led for `STABLE_FOR` seconds, and return it."""
    leaders: list[holdfast.Leader] = []

    def leads() -> bool:
        leader = election.leader()
        if leader is None or not any(f"beat {leader.term} " in path.read_text() for path in logs):
            return False
        time.sleep(STABLE_FOR)
        if _term(election) != leader.term:
            return False
        leaders.append(leader)
        return True

    eventually(leads)
    return leaders[-1]


def _wait_until_observed(term: int, logs: Sequence[Path]) -> None:
    eventually(lambda: all(f"seen {term} " in path.read_text() for path in logs))


def _read(pid: int, path: Path) -> Record:
    beats: dict[int, list[float]] = {}
    lost: list[int] = []
    seen: list[Observation] = []
    for line in path.read_text().splitlines():
        match line.split():
            case ["beat", term, at]:
                beats.setdefault(int(term), []).append(float(at))
            case ["lost", term, _]:
                lost.append(int(term))
            case ["seen", term, leader, at]:
                seen.append(Observation(int(term), int(leader), float(at)))
            case words:
                raise AssertionError(f"{path} has {words}")
    turns = [Turn(times[0], times[0], times[-1], term) for term, times in beats.items()]
    return Record(pid, turns, lost, seen)
