"""What came out: the figures of every case, round by round, and what they make together."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks import figures
from benchmarks.measure import Column, Figures
from benchmarks.plan import Case, Group


@dataclass
class Record:
    """One case. A round that failed is None, so that rounds of different cases stay side by side."""

    case: Case
    rounds: list[Figures | None] = field(default_factory=list)
    problem: str | None = None  # why it was not run, or what went wrong the first time
    seconds: float = 0.0  # that the last round took, with its preparations

    def add_failure(self, problem: str) -> None:
        self.rounds.append(None)
        self.problem = self.problem or problem

    @property
    def good(self) -> list[Figures]:
        return [one for one in self.rounds if one is not None]

    @property
    def is_broken(self) -> bool:
        """Two had the lock at the same time."""
        return any(one.get("overlaps", 0) > 0 for one in self.good)

    def value(self, column: Column) -> float | None:
        """Over all rounds, in the unit of the column."""
        values = self.values(column.key)
        if not values:
            return None
        return column.scale * (max(values) if column.over_rounds == "max" else figures.median(values))

    def values(self, key: str) -> list[float]:
        return [one[key] for one in self.good if key in one]

    def ratio(self, baseline: Record, key: str) -> float | None:
        """The median of the ratios within each round: what slows down a whole round does not count."""
        ratios = [
            mine[key] / theirs[key]
            for mine, theirs in zip(self.rounds, baseline.rounds, strict=False)
            if mine is not None and theirs is not None and key in mine and theirs.get(key, 0) > 0
        ]
        return figures.median(ratios) if ratios else None


@dataclass
class Outcome:
    """One table, filled in."""

    group: Group
    cores: dict[str, int]  # how many, for each contender's name
    records: list[Record]

    @property
    def baseline(self) -> Record | None:
        case = self.group.baseline
        found = next((record for record in self.records if record.case == case), None)
        return found if found and found.good else None

    @property
    def broken(self) -> list[Record]:
        return [record for record in self.records if record.is_broken]
