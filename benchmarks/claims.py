"""Our claims, compared with the figures of one run: the claim, the figure, the limit, and whether it holds.

This is a report and not a test: on a busy machine any claim can fail temporarily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks import figures
from benchmarks.results import Outcome, Record
from benchmarks.table import Row, Table, number


@dataclass(frozen=True)
class Judged:
    """One claim after a run."""

    claim: str
    measured: float
    sense: Literal["at most", "at least"]
    limit: float

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit if self.sense == "at most" else self.measured >= self.limit


def judge(outcomes: Sequence[Outcome]) -> list[Judged]:
    """Return the claims that this run can judge, without those whose cases were not run or failed."""
    run = _Run(outcomes)
    judged = []
    for claim, sense, limit, measure in CLAIMS:
        measured = measure(run)
        if measured is not None:
            judged.append(Judged(claim, measured, sense, limit))
    return judged


def claims_table(judged: Sequence[Judged]) -> Table:
    table = Table("What is claimed", ["", "measured", "limit", "holds"])
    for claim in judged:
        sign = "≤" if claim.sense == "at most" else "≥"
        cells = [claim.claim, number(claim.measured), f"{sign} {claim.limit:g}", "yes" if claim.holds else "NO"]
        table.rows.append(Row(cells, mark=None if claim.holds else "broken"))
    return table


class _Run:
    """The records of a run by their names."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._records: dict[tuple[str, str, str], Record] = {}
        for outcome in outcomes:
            for record in outcome.records:
                case = record.case
                self._records[case.measure.name, case.setting.slug, case.contender.name] = record

    def ratio(self, measure: str, setting: str, key: str, mine: str, theirs: str) -> float | None:
        """Return the median of the ratios of two contenders within each round."""
        first, second = (self._records.get((measure, setting, name)) for name in (mine, theirs))
        return first.ratio(second, key) if first is not None and second is not None else None

    def values(self, measure: str, setting: str, key: str, name: str) -> list[float]:
        record = self._records.get((measure, setting, name))
        return record.values(key) if record is not None else []


def _ratio(measure: str, setting: str, key: str, mine: str, theirs: str) -> Callable[[_Run], float | None]:
    return lambda run: run.ratio(measure, setting, key, mine, theirs)


def _times(mine: str, theirs: str) -> Callable[[_Run], float | None]:
    """The ratio of throughput with 50 tasks at once."""

    def measured(run: _Run) -> float | None:
        ratio = run.ratio("many", "50-tasks", "pair", mine, theirs)
        return 1 / ratio if ratio else None

    return measured


def _contended(key: str, name: str, over_rounds: Callable[[list[float]], float]) -> Callable[[_Run], float | None]:
    def measured(run: _Run) -> float | None:
        values = run.values("contended", "8-hold-2ms", key, name)
        return over_rounds(values) if values else None

    return measured


def _difference(name: str, *waiting: str) -> Callable[[_Run], float | None]:
    """The difference between the most and the fewest commands per hand-over, over the numbers of waiters."""

    def measured(run: _Run) -> float | None:
        counts = _commands(run, name, waiting)
        return max(counts) - min(counts) if counts else None

    return measured


def _most(name: str, *waiting: str) -> Callable[[_Run], float | None]:
    """The most commands per hand-over, over the numbers of waiters."""
    return lambda run: max(_commands(run, name, waiting), default=None)


def _commands(run: _Run, name: str, waiting: Sequence[str]) -> list[float]:
    """The commands per hand-over for each number of waiters; [] if one of them was not measured."""
    counts = [run.values("waiters", setting, "commands", name) for setting in waiting]
    return [figures.median(values) for values in counts] if all(counts) else []


def _growth(name: str, few: str, many: str) -> Callable[[_Run], float | None]:
    """The ratio of commands per second with many waiters to those with a few."""

    def measured(run: _Run) -> float | None:
        counts = [run.values("waiters", setting, "idle_commands", name) for setting in (many, few)]
        if not all(counts):
            return None
        most, least = (figures.median(values) for values in counts)
        return most / least if least else None

    return measured


Claim = tuple[str, Literal["at most", "at least"], float, Callable[[_Run], float | None]]


def _fair(name: str) -> list[Claim]:
    """The claims about waiting, for threads and for asyncio."""
    where = f"{name}, 8 hold it 2 ms"
    return [
        (f"{where}: p99 wait / fair share", "at most", 1.5, _contended("wait_p99_of_share", name, figures.median)),
        (f"{where}: longest wait / fair share", "at most", 4.0, _contended("wait_max_of_share", name, max)),
        (f"{where}: Jain's index", "at least", 0.99, _contended("jain", name, figures.median)),
        # The release grants the lock to a waiter that has polled within a second, which takes 10 commands. Others are
        # woken and poll: waiters behind the second place poll every 2.5 s only.
        _limited(name, 45.0, "2", "64", "1000"),
    ]


def _limited(name: str, limit: float, *waiting: str) -> Claim:
    """A hand-over never costs the server more than so many commands, for any number of waiters."""
    few, many = int(waiting[0]), int(waiting[-1])
    return f"{name}, {few} to {many:,} wait: commands per hand-over", "at most", limit, _most(name, *waiting)


def _constant(name: str, *waiting: str) -> Claim:
    """A hand-over costs the server the same for any number of waiters."""
    few, many = int(waiting[0]), int(waiting[-1])
    claim = f"{name}, {few} to {many:,} wait: commands per hand-over, range"
    return claim, "at most", 1.0, _difference(name, *waiting)


_PAIR = ("uncontended", "pairs", "pair")
_UP_TO_200 = ("2", "64", "200")


def _above(name: str, limit: float, bare: str) -> Claim:
    """The cost of a lock relative to the bare calls that it needs on the same driver."""
    return f"{name}: a pair / {bare}", "at most", limit, _ratio(*_PAIR, name, bare)


def _fastest(name: str, *peers: str) -> list[Claim]:
    """All peers are slower."""
    return [(f"{peer}: a pair / {name}'s", "at least", 1.0, _ratio(*_PAIR, peer, name)) for peer in peers]


CLAIMS: list[Claim] = [
    ("holdfast redis: a pair / redis-py Lock's", "at most", 0.6, _ratio(*_PAIR, "holdfast redis", "redis-py Lock")),
    (
        "holdfast redis: a pair / two Connection calls",
        "at most",
        2.0,
        _ratio(*_PAIR, "holdfast redis", "two Connection calls"),
    ),
    (
        "holdfast redis asyncio: a pair / redis-py Lock asyncio's",
        "at most",
        0.6,
        _ratio(*_PAIR, "holdfast redis asyncio", "redis-py Lock asyncio"),
    ),
    (
        "holdfast redis asyncio, 50 at once: pairs/s / redis-py Lock asyncio's",
        "at least",
        2.0,
        _times("holdfast redis asyncio", "redis-py Lock asyncio"),
    ),
    *_fair("holdfast redis"),
    (
        "holdfast redis, 8 hold it 2 ms: gap / python-redis-lock's",  # for threads only
        "at most",
        1.0,
        _ratio("contended", "8-hold-2ms", "gap_to_another", "holdfast redis", "python-redis-lock"),
    ),
    *_fair("holdfast redis asyncio"),
    (
        "holdfast redlock, 5 nodes on another core: a pair / holdfast redis with 1",
        "at most",
        5.0,
        _ratio("uncontended", "apart", "pair", "holdfast redlock", "holdfast redis, 1 node"),
    ),
    (
        "pottery, 5 nodes: a pair / holdfast redlock's",
        "at least",
        2.0,
        _ratio(*_PAIR, "pottery, 5 nodes", "holdfast redlock"),
    ),
    (
        "holdfast redlock, 5 nodes 5 ms away: a pair / holdfast redis with 1",
        "at most",
        1.3,
        _ratio("uncontended", "5ms-away", "pair", "holdfast redlock", "holdfast redis, 1 node"),
    ),
    _above("holdfast postgresql", 1.8, "INSERT + DELETE"),
    _above("holdfast mysql", 1.8, "INSERT + DELETE, MariaDB"),
    (
        "holdfast mysql, 64 / 4 wait: questions per second of waiting",
        "at most",
        2.0,
        _growth("holdfast mysql", "4", "64"),
    ),
    (
        "holdfast mysql asyncio, 64 / 4 wait: questions per second of waiting",
        "at most",
        2.0,
        _growth("holdfast mysql asyncio", "4", "64"),
    ),
    _above("holdfast zookeeper", 1.4, "three kazoo calls"),
    _above("holdfast zookeeper asyncio", 1.4, "three kazoo calls"),
    *_fastest("holdfast zookeeper", "kazoo Lock", "tooz zookeeper"),
    _constant("holdfast zookeeper", *_UP_TO_200),
    _constant("holdfast zookeeper asyncio", *_UP_TO_200),
    # Its transaction also reads the tickets, a tombstone and the key of method=key: that takes the server 1.34 times as
    # long as the bare calls.
    _above("holdfast etcd", 1.5, "two etcd calls"),
    *_fastest("holdfast etcd", "etcd3gw", "tooz etcd"),
    *_fastest("holdfast etcd asyncio", "aetcd"),
    # Two or three commands, and the polls of waiters that are due in the meantime.
    _limited("holdfast etcd", 4.5, *_UP_TO_200),
    _limited("holdfast etcd asyncio", 4.5, *_UP_TO_200),
    _above("holdfast memcached", 1.4, "two calls of our port"),
    _above("holdfast memcached", 1.6, "two raw memcached calls"),
    *_fastest("holdfast memcached", "sherlock memcached", "tooz memcached"),
]
