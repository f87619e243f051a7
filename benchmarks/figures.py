"""Statistics. Pure functions; times are seconds of one clock."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Turn(NamedTuple):
    """One hold of the lock, with the times that its holder read."""

    client: int
    requested: float  # before the acquire
    acquired: float  # after it returned: the holder certainly held the lock from here …
    releasing: float  # … to here, before the release


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("quantile of nothing")
    rank = -(-share * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def bounds(values: Sequence[float], share: float = 0.95, samples: int = 2000) -> tuple[float, float]:
    """Return the bootstrap bounds of the median: of this share of the samples, the median is between them.

    A sample has as many values, drawn with replacement. The same values give the same bounds.
    """
    draw = random.Random(0)  # noqa: S311  (no secret)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(samples))
    return quantile(medians, (1 - share) / 2), quantile(medians, (1 + share) / 2)


def spread(values: Sequence[float]) -> float:
    """Return half the range of the values, divided by their median: 0.05 is "±5 %"."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def jain(counts: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all values are equal, 1/n if only one of n is not 0."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def in_order(turns: Iterable[Turn]) -> list[Turn]:
    """Sort the turns by their beginning."""
    return sorted(turns, key=lambda turn: turn.acquired)


def overlaps(turns: Sequence[Turn]) -> int:
    """Return how many turns began before an earlier one had ended: 0, or the lock is broken.

    The turns must be in order. A holder reads its clock inside its turn, so there are no false positives; but a broken
    lock may not be detected.
    """
    count, last_release = 0, float("-inf")
    for turn in turns:
        if turn.acquired < last_release:
            count += 1
        last_release = max(last_release, turn.releasing)
    return count


def gaps(turns: Sequence[Turn]) -> list[float]:
    """Return the times from the start of a release to the return of the next acquire."""
    return [after.acquired - before.releasing for before, after in pairwise(turns)]


def changes(turns: Sequence[Turn]) -> float:
    """Return the share of turns that were followed by a turn of another client."""
    pairs = list(pairwise(turns))
    return sum(before.client != after.client for before, after in pairs) / len(pairs) if pairs else 0.0
