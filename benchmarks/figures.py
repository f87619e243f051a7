"""What is made of many measured numbers. Pure functions; times are seconds of one clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Turn(NamedTuple):
    """One hold of the lock, with the times that its holder read."""

    who: int
    asked: float  # before the acquire
    acquired: float  # after it returned: the holder was certain of the lock from here …
    leaving: float  # … to here, before the release


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return statistics.median(values)


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed (the nearest-rank method)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("quantile of nothing")
    rank = -(-share * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def spread(values: Sequence[float]) -> float:
    """Half the range of the values, as a share of their median: 0.05 is "±5 %"."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def jain(counts: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all got the same, 1/n when one of n got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def in_order(turns: Iterable[Turn]) -> list[Turn]:
    """The turns as they began."""
    return sorted(turns, key=lambda turn: turn.acquired)


def overlaps(turns: Sequence[Turn]) -> int:
    """How many turns began while an earlier one was certainly not over: 0, or the lock is broken.

    The turns must be in order. A holder reads its clock inside its turn, so what is counted did overlap; a lock can be
    broken without being caught here, never the other way round.
    """
    found, last_leaving = 0, float("-inf")
    for turn in turns:
        if turn.acquired < last_leaving:
            found += 1
        last_leaving = max(last_leaving, turn.leaving)
    return found


def gaps(turns: Sequence[Turn]) -> list[float]:
    """How long nobody could work: from the start of one release to the return of the next acquire, in order."""
    return [after.acquired - before.leaving for before, after in pairwise(turns)]


def changes(turns: Sequence[Turn]) -> float:
    """The share of turns after which somebody else was next."""
    pairs = list(pairwise(turns))
    return sum(before.who != after.who for before, after in pairs) / len(pairs) if pairs else 0.0
