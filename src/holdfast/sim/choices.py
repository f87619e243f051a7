"""Every decision of a run, drawn in one place and recorded: the tape. The same tape gives the same run.

0 is the tame choice everywhere (no fault, the shortest delay), and a tape that has run out goes on with zeros. So a
failing run becomes simpler when numbers on its tape are lowered or taken out: that is how it is shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FINENESS = 4096  # how finely a number between two bounds is chosen


class Choices:
    """Decisions from a seed, or from a tape."""

    def __init__(self, seed: int | None = None, decisions: Sequence[int] = ()) -> None:
        self.decisions: list[int] = []
        self._given = decisions
        self._random = None if seed is None else random.Random(seed).random  # noqa: S311  (it has to be repeatable)

    def below(self, count: int) -> int:
        """A whole number from 0 up to `count`, not including it."""
        if self._random is not None:
            choice = int(self._random() * count)
        else:
            place = len(self.decisions)
            choice = min(self._given[place], count - 1) if place < len(self._given) else 0
        self.decisions.append(choice)
        return choice

    def chance(self, probability: float) -> bool:
        """True with this probability. Nothing is drawn for what cannot happen."""
        return probability > 0.0 and self.below(FINENESS) >= FINENESS * (1.0 - probability)

    def between(self, low: float, high: float) -> float:
        """A number from `low` up to `high`."""
        return low + (high - low) * self.below(FINENESS) / FINENESS if high > low else low

    def pick(self, things: Sequence[T]) -> T:
        """One of them; the first is the tame one."""
        return things[self.below(len(things))] if len(things) > 1 else things[0]
