"""What a measure is: one question, asked of every contender that can answer, in each round anew.

A measure is a module in `measures/` with a constant MEASURE. Its `run` is called in a process of its own and returns
plain figures of one round; medians over rounds, ratios and tables are made from them elsewhere.
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
    """How much is done: in a full run, in a quick one, in a test."""

    rounds: int
    pairs_seconds: float  # uncontended: for that long
    contended_seconds: float
    crowds: tuple[int, ...]  # how many contend
    back_to_back: bool  # and once more without holding it
    waiters: tuple[int, ...]  # how many wait
    settle_seconds: float  # until all of them certainly wait; more for more than 300
    idle_seconds: float  # for which the cost of waiting is watched
    leases: tuple[int, ...]
    leases_ttl: float
    leases_rounds: int  # they take long and vary little
    imports: int  # interpreters started in a round for each of the three programs that are compared


FULL = Effort(
    rounds=5,
    pairs_seconds=0.4,
    contended_seconds=1.0,
    crowds=(2, 8),
    back_to_back=True,
    waiters=(2, 4, 16, 64, 200, 1000),
    settle_seconds=0.3,
    idle_seconds=0.5,
    leases=(1000, 10_000),
    leases_ttl=6.0,
    leases_rounds=1,
    imports=2,
)
QUICK = Effort(
    rounds=1,
    pairs_seconds=0.1,
    contended_seconds=0.25,
    crowds=(8,),
    back_to_back=False,
    waiters=(64,),
    settle_seconds=0.1,
    idle_seconds=0.2,
    leases=(500,),
    leases_ttl=1.0,
    leases_rounds=1,
    imports=1,
)


@dataclass(frozen=True)
class Setting:
    """The numbers of one case: a table of its own."""

    slug: str
    title: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def delay(self) -> float:
        """Seconds that whatever is sent to a server is under way."""
        return self.numbers.get("delay", 0.0)

    @property
    def is_apart(self) -> bool:
        """The servers work on other cores than their client, as on other machines."""
        return bool(self.numbers.get("apart"))


@dataclass(frozen=True)
class Column:
    """One figure, as a table shows it; a table in which nobody has that figure goes without."""

    key: str
    heading: str  # in up to two lines
    scale: float = 1.0  # a figure in seconds times 1e6 is shown in µs
    over_rounds: Literal["median", "max"] = "median"
    plain: bool = False  # shown as a whole number, not with three digits


@dataclass(frozen=True)
class Panel:
    """One figure (a dot) or two (a dot and a ring), as a plot shows them."""

    title: str
    dot: str
    ring: str | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Measure:
    """One question."""

    name: str
    title: str
    explains: str  # what is measured, and what is better; below the title
    settings: Callable[[Effort], list[Setting]]
    run: Callable[[Contender, Mapping[str, float], str], Figures]
    cannot: Callable[[Contender, Setting], str | None]  # why this contender takes no part; None: it does
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...] = ()  # a plot for each table
    lines: tuple[Panel, ...] = ()  # each one plot for all its settings: the dot over the first number of the setting
    ratio_of: str | None = None  # the figure that is compared with the baseline's
    cores: Callable[[Contender], Literal["one", "all"]] = lambda _: "one"
    layout: Callable[[Contender, Setting], str] | None = None  # a column of words: who does it
    by_arena: bool = True  # False: contenders of all arenas in one table
    rounds: Callable[[Effort], int] = lambda effort: effort.rounds
    limit: float = 60.0  # seconds after which a case has failed


def all_measures() -> list[Measure]:
    """In the order in which they are run and shown."""
    package = importlib.import_module("benchmarks.measures")
    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").MEASURE
        for module in pkgutil.iter_modules(package.__path__)
    ]
    order: list[str] = package.ORDER
    return sorted(found, key=lambda measure: order.index(measure.name) if measure.name in order else len(order))
