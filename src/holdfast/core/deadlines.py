"""A heap of deadlines that move: the keeper's renewals and expiries.

Each lease is in the heap exactly once. Its deadline mostly moves later, at every renewal, so the entry is corrected
only when it reaches the top. References are weak: the heap must not keep a lease alive that the program has dropped.
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
        """`due` returns the present deadline of an item; None if it has none any more."""
        self._due = due
        self._heap: list[tuple[float, int, weakref.ref[T]]] = []
        self._count = 0  # breaks ties, so that items are never compared
        self._sweep_at = 64

    def add(self, item: T) -> None:
        """Add an item, unless it has no deadline."""
        when = self._due(item)
        if when is not None:
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, weakref.ref(item)))
            if len(self._heap) > self._sweep_at:
                self._sweep()

    def move(self, item: T) -> None:
        """The deadline of an item may be earlier now. An item that is not in the heap is not added."""
        others = [entry for entry in self._heap if entry[2]() is not item]
        if len(others) < len(self._heap):
            heapq.heapify(others)
            self._heap = others  # assigned as a whole, so that an interrupt leaves a valid heap
            self.add(item)

    def earliest(self) -> float | None:
        """The earliest deadline; None if the heap is empty."""
        while self._heap:
            recorded, _, ref = self._heap[0]
            actual = self._when(ref)
            if actual is None:
                heapq.heappop(self._heap)
            elif actual > recorded:
                self._count += 1
                heapq.heapreplace(self._heap, (actual, self._count, ref))
            else:
                return recorded
        return None

    def take(self, now: float, at_most: int, early: Callable[[T], float] | None = None) -> list[T]:
        """Remove and return items that are due. The caller adds them again if needed.

        `early` returns the seconds by which others may be early if this item is the first that is due.
        """
        taken: list[T] = []
        until = now
        while len(taken) < at_most:
            when = self.earliest()
            if when is None or when > until:
                break
            item = heapq.heappop(self._heap)[2]()
            if item is not None:
                if early is not None and not taken:
                    until = now + early(item)
                taken.append(item)
        return taken

    def _sweep(self) -> None:
        """Remove items without a deadline. The next sweep is due when the heap has doubled: O(1) for each item."""
        live = [entry for entry in self._heap if self._when(entry[2]) is not None]
        heapq.heapify(live)
        self._heap = live  # assigned as a whole, so that an interrupt leaves a valid heap
        self._sweep_at = max(64, 2 * len(live))

    def _when(self, ref: weakref.ref[T]) -> float | None:
        item = ref()
        return None if item is None else self._due(item)
