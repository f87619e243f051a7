"""The figures of every case and round, and their medians and ratios."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks import figures
from benchmarks.measure import Column, Figures
from benchmarks.plan import Case, Group

BOUNDS_ROUNDS = 5  # with fewer rounds, bounds say little


@dataclass
class Record:
    """One case. A failed round is None, so that the rounds of all cases correspond."""

    case: Case
    rounds: list[Figures | None] = field(default_factory=list)
    problem: str | None = None  # why it was not run, or its first error
    seconds: float = 0.0  # duration of the last round, with its preparation

    def add_failure(self, problem: str) -> None:
        self.rounds.append(None)
        self.problem = self.problem or problem

    @property
    def good(self) -> list[Figures]:
        return [round_figures for round_figures in self.rounds if round_figures is not None]

    @property
    def is_broken(self) -> bool:
        """Whether two clients held the lock at the same time."""
        return any(round_figures.get("overlaps", 0) > 0 for round_figures in self.good)

    def value(self, column: Column) -> float | None:
        """The median of all rounds, or their maximum for a column that says so, in the unit of the column."""
        values = self.values(column.key)
        if not values:
            return None
        return column.scale * (max(values) if column.over_rounds == "max" else figures.median(values))

    def values(self, key: str) -> list[float]:
        return [round_figures[key] for round_figures in self.good if key in round_figures]

    def ratio(self, baseline: Record, key: str) -> float | None:
        """Return the median of the ratios within each round, so that a slow round has no effect."""
        ratios = self.ratios(baseline, key)
        return figures.median(ratios) if ratios else None

    def ratio_bounds(self, baseline: Record, key: str) -> tuple[float, float] | None:
        """Return the bootstrap bounds of `ratio`; None with fewer than BOUNDS_ROUNDS rounds."""
        ratios = self.ratios(baseline, key)
        return figures.bounds(ratios) if len(ratios) >= BOUNDS_ROUNDS else None

    def ratios(self, baseline: Record, key: str) -> list[float]:
        """Return the ratio within each round."""
        return [
            mine[key] / theirs[key]
            for mine, theirs in zip(self.rounds, baseline.rounds, strict=False)
            if mine is not None and theirs is not None and key in mine and theirs.get(key, 0) > 0
        ]


@dataclass
class Outcome:
    """One table, filled in."""

    group: Group
    cores: dict[str, int]  # number of cores by contender
    records: list[Record]
    run: str = ""  # the run that has measured it, if it is not that of the report

    @property
    def baseline(self) -> Record | None:
        case = self.group.baseline
        record = next((record for record in self.records if record.case == case), None)
        return record if record and record.good else None

    @property
    def broken(self) -> list[Record]:
        return [record for record in self.records if record.is_broken]
