"""What many processes saw, put together: who held what when. Times are of the clock that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Turn(NamedTuple):
    """One lease, from after the acquire to before the release: its holder was certain of it all that time."""

    asked: float
    acquired: float
    leaving: float
    fence: int

    @property
    def waited(self) -> float:
        return self.acquired - self.asked


def turns_of(reports: Iterable[Iterable[Sequence[float]]]) -> list[Turn]:
    """The turns of all processes, in the order in which they began."""
    turns = [
        Turn(asked, acquired, leaving, int(fence)) for report in reports for asked, acquired, leaving, fence in report
    ]
    return sorted(turns, key=lambda turn: turn.acquired)


def assert_exclusive(turns: Sequence[Turn]) -> None:
    """Nobody was in before the one before had begun to leave, and the fences say so too."""
    for before, after in pairwise(turns):
        assert before.leaving < after.acquired, f"{before} and {after} overlap"
        assert before.fence < after.fence, f"{after} follows {before}"


def most_at_once(turns: Sequence[Turn]) -> int:
    """How many were in at the same time, at most."""
    changes = sorted([(turn.acquired, 1) for turn in turns] + [(turn.leaving, -1) for turn in turns])
    inside = most = 0
    for _, change in changes:
        inside += change
        most = max(most, inside)
    return most


def assert_no_overlap(some: Sequence[Turn], others: Sequence[Turn]) -> None:
    """No turn of the one kind was in together with one of the other kind, nor with another of its own."""
    marked = sorted(
        [(turn, True) for turn in some] + [(turn, False) for turn in others], key=lambda one: one[0].acquired
    )
    last_exclusive = last_shared = 0.0
    for turn, is_exclusive in marked:
        assert last_exclusive < turn.acquired, f"{turn} overlaps an exclusive one"
        if is_exclusive:
            assert last_shared < turn.acquired, f"{turn} overlaps a shared one"
            last_exclusive = turn.leaving
        else:
            last_shared = max(last_shared, turn.leaving)


def gaps(turns: Sequence[Turn]) -> list[float]:
    """How long the lock stood between one holder's leaving and the next one's arrival."""
    return [after.acquired - before.leaving for before, after in pairwise(turns)]


def quantile(values: Iterable[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(line: str) -> None:
    """Shown by `pytest -s` or `-rP`, and with a failure."""
    sys.stdout.write(f"\n    {line}\n")
