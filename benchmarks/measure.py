"""A measure, which runs on every contender that supports it, in each round.

A measure is a module in `measures/` with a constant MEASURE. Its `run` is called in a process of its own and returns
the figures of one round; medians over rounds, ratios and tables are computed elsewhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from benchmarks.contender import Contender

Figures = dict[str, float]

# One clock for all processes of the machine, read without a system call.
now = time.monotonic


class Effort(NamedTuple):
    """The extent of a run: full, quick, or for a test."""

    rounds: int
    pairs_seconds: float  # uncontended: duration
    contended_seconds: float
    contended_rounds: int  # at most: each takes seconds
    crowds: tuple[int, ...]  # number of contending clients
    back_to_back: bool  # and again without holding it
    waiters: tuple[int, ...]  # number of waiters
    settle_seconds: float  # until all of them wait; longer for more than 300
    idle_seconds: float  # duration of the measurement of idle waiting
    leases: tuple[int, ...]
    leases_ttl: float
    long_rounds: int  # of leases and waiters, which take long and vary little
    imports: int  # interpreters per round for each of the three programs


FULL = Effort(
    rounds=5,
    pairs_seconds=0.4,
    contended_seconds=1.0,
    contended_rounds=3,
    crowds=(8,),
    back_to_back=True,
    waiters=(2, 4, 64, 200, 1000),
    settle_seconds=0.3,
    idle_seconds=0.5,
    leases=(1000, 10_000),
    leases_ttl=6.0,
    long_rounds=1,
    imports=2,
)
QUICK = Effort(
    rounds=1,
    pairs_seconds=0.1,
    contended_seconds=0.25,
    contended_rounds=1,
    crowds=(8,),
    back_to_back=False,
    waiters=(64,),
    settle_seconds=0.1,
    idle_seconds=0.2,
    leases=(500,),
    leases_ttl=1.0,
    long_rounds=1,
    imports=1,
)


@dataclass(frozen=True)
class Setting:
    """The numbers of one case; each setting is a table."""

    slug: str
    title: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def delay(self) -> float:
        """Seconds by which requests to a server are delayed."""
        return self.numbers.get("delay", 0.0)

    @property
    def is_apart(self) -> bool:
        """The servers run on other cores than their client."""
        return bool(self.numbers.get("apart"))


@dataclass(frozen=True)
class Column:
    """A column of a table; it is omitted if no contender has the figure."""

    key: str
    heading: str  # in up to two lines
    scale: float = 1.0  # a figure in seconds times 1e6 is shown in µs
    over_rounds: Literal["median", "max"] = "median"
    plain: bool = False  # shown as a whole number


@dataclass(frozen=True)
class Panel:
    """One figure (a dot) or two (a dot and a ring) of a plot."""

    title: str
    dot: str
    ring: str | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Measure:
    """One measure."""

    name: str
    title: str
    explains: str  # explanation below the title
    settings: Callable[[Effort], list[Setting]]
    run: Callable[[Contender, Mapping[str, float], str], Figures]
    cannot: Callable[[Contender, Setting], str | None]  # why a contender is not measured; None: it is
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...] = ()  # one plot per table
    lines: tuple[Panel, ...] = ()  # one plot for all settings: the x axis is the first number of the setting
    ratio_of: str | None = None  # the figure that is compared with that of the baseline
    cores: Callable[[Contender], Literal["one", "all"]] = lambda _: "one"
    layout: Callable[[Contender, Setting], str] | None = None  # a column of text
    by_arena: bool = True  # False: one table for all arenas
    rounds: Callable[[Effort], int] = lambda effort: effort.rounds
    limit: float = 60.0  # timeout of a case in seconds


def all_measures() -> list[Measure]:
    """Return all measures in the order of the run and of the output."""
    package = importlib.import_module("benchmarks.measures")
    measures = [
        importlib.import_module(f"{package.__name__}.{module.name}").MEASURE
        for module in pkgutil.iter_modules(package.__path__)
    ]
    order: list[str] = package.ORDER
    return sorted(measures, key=lambda measure: order.index(measure.name) if measure.name in order else len(order))
