"""Every random decision of a run, drawn here and recorded as a list of numbers. The same list gives the same run.

0 is always the harmless choice (no fault, the shortest delay), and a replay continues with zeros after the end of its
list. So shrink.py simplifies a failing run by lowering or removing numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FINENESS = 4096  # number of steps between two bounds


class Choices:
    """Decisions from a seed, or replayed from a list."""

    def __init__(self, seed: int | None = None, decisions: Sequence[int] = ()) -> None:
        self.decisions: list[int] = []
        self._given = decisions
        self._random = None if seed is None else random.Random(seed).random  # noqa: S311  (must be repeatable)

    def below(self, count: int) -> int:
        """An integer from 0 to `count` - 1."""
        if self._random is not None:
            choice = int(self._random() * count)
        else:
            index = len(self.decisions)
            choice = min(self._given[index], count - 1) if index < len(self._given) else 0
        self.decisions.append(choice)
        return choice

    def chance(self, probability: float) -> bool:
        """True with this probability. Nothing is drawn if the probability is 0."""
        return probability > 0.0 and self.below(FINENESS) >= FINENESS * (1.0 - probability)

    def between(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        return low + (high - low) * self.below(FINENESS) / FINENESS if high > low else low

    def pick(self, options: Sequence[T]) -> T:
        """One of them; the first is the harmless one."""
        return options[self.below(len(options))] if len(options) > 1 else options[0]
