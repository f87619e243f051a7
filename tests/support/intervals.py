"""Merge the reports of several processes: which lease was held when, on the clock that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Turn(NamedTuple):
    """One lease, from after the acquire to before the release: its holder certainly held it during this time."""

    asked: float
    acquired: float
    leaving: float
    fence: int

    @property
    def waited(self) -> float:
        return self.acquired - self.asked


def turns_of(reports: Iterable[Iterable[Sequence[float]]]) -> list[Turn]:
    """Return the turns of all processes in the order in which they began."""
    turns = [
        Turn(asked, acquired, leaving, int(fence)) for report in reports for asked, acquired, leaving, fence in report
    ]
    return sorted(turns, key=lambda turn: turn.acquired)


def assert_exclusive(turns: Sequence[Turn]) -> None:
    """Check that no turn began before the previous one had ended, and that fences grow."""
    for before, after in pairwise(turns):
        assert before.leaving < after.acquired, f"{before} and {after} overlap"
        assert before.fence < after.fence, f"{after} follows {before}"


def most_at_once(turns: Sequence[Turn]) -> int:
    """Return the maximum number of simultaneous holders."""
    changes = sorted([(turn.acquired, 1) for turn in turns] + [(turn.leaving, -1) for turn in turns])
    holders = most = 0
    for _, change in changes:
        holders += change
        most = max(most, holders)
    return most


def assert_no_overlap(some: Sequence[Turn], others: Sequence[Turn]) -> None:
    """Check that a turn of `some` overlaps neither a turn of `others` nor another one of `some`."""
    turns = sorted(
        [(turn, True) for turn in some] + [(turn, False) for turn in others], key=lambda turn: turn[0].acquired
    )
    last_exclusive = last_shared = 0.0
    for turn, is_exclusive in turns:
        assert last_exclusive < turn.acquired, f"{turn} overlaps an exclusive one"
        if is_exclusive:
            assert last_shared < turn.acquired, f"{turn} overlaps a shared one"
            last_exclusive = turn.leaving
        else:
            last_shared = max(last_shared, turn.leaving)


def gaps(turns: Sequence[Turn]) -> list[float]:
    """Return the times from a release to the next acquire."""
    return [after.acquired - before.leaving for before, after in pairwise(turns)]


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(line: str) -> None:
    """Print a line, which `pytest -s` and `-rP` show, and every failure."""
    sys.stdout.write(f"\n    {line}\n")
