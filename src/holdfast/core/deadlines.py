"""A list of things due at times that move: the keeper's renewals, and its alarms.

Each lease stands here exactly once. Its due time mostly moves later (every renewal does that), so the entry stays
where it is and is put right when it comes up. Leases are held weakly: one dropped by everybody must not live on here.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineHeap(Generic[T]):
    """Not thread-safe: the keeper's mutex guards it."""

    def __init__(self, due: Callable[[T], float | None]) -> None:
        """`due` says when an item is due as of now; None: not any more."""
        self._due = due
        self._heap: list[tuple[float, int, weakref.ref[T]]] = []
        self._count = 0  # breaks ties, so that items are never compared
        self._sweep_at = 64

    def add(self, item: T) -> None:
        """Note it for its due time, unless it is not due at all."""
        when = self._due(item)
        if when is not None:
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, weakref.ref(item)))
            if len(self._heap) > self._sweep_at:
                self._sweep()

    def earliest(self) -> float | None:
        """When the next item is due, exactly."""
        while self._heap:
            noted, _, ref = self._heap[0]
            actual = self._when(ref)
            if actual is None:
                heapq.heappop(self._heap)
            elif actual > noted:
                self._count += 1
                heapq.heapreplace(self._heap, (actual, self._count, ref))
            else:
                return noted
        return None

    def take(self, now: float, at_most: int) -> list[T]:
        """Remove and return what is due; the caller adds back what goes on."""
        taken: list[T] = []
        while len(taken) < at_most:
            when = self.earliest()
            if when is None or when > now:
                break
            item = heapq.heappop(self._heap)[2]()
            if item is not None:
                taken.append(item)
        return taken

    def _sweep(self) -> None:
        """Throw out what is over. The next sweep waits until the list has doubled, so each item pays for O(1)."""
        left = [entry for entry in self._heap if self._when(entry[2]) is not None]
        heapq.heapify(left)
        self._heap = left  # in order, whenever an interrupt comes
        self._sweep_at = max(64, 2 * len(left))

    def _when(self, ref: weakref.ref[T]) -> float | None:
        item = ref()
        return None if item is None else self._due(item)
