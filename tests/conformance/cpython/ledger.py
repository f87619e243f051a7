"""Leases that a case leaves behind. CPython's cases often drop a lock that is held, which threading allows.

A dropped lease must cause exactly one ResourceWarning, and no other lease may cause one. The ledger checks this for
each lease of a case.
"""

from __future__ import annotations

import contextlib
import gc
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator

import holdfast

_DROPPED = re.compile(r"\(fence (\d+)\) was dropped without release")


class Ledger:
    """Leases that were acquired and not released, by lock; and the warnings about dropped leases."""

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = defaultdict(set)
        self._warnings: list[warnings.WarningMessage] = []

    def note(self, event: holdfast.Event) -> None:
        """A subscriber for a client's events."""
        if event.fence is None:
            return
        if event.kind == "acquired":
            self.held[event.lock].add(event.fence)
        elif event.kind == "released":
            self.held[event.lock].remove(event.fence)

    @contextlib.contextmanager
    def recording_warnings(self) -> Iterator[None]:
        """During the block, ResourceWarnings of all threads are recorded instead of raised."""
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", ResourceWarning)
            self._warnings = recorded
            yield

    def is_balanced(self) -> bool:
        """Whether there is exactly one warning for each lease that was not released, and no other warning."""
        gc.collect()
        return self._not_released() == self._dropped()

    def __str__(self) -> str:
        return f"leases not released: {self._not_released()}; ResourceWarnings: {self._dropped()}"

    def _not_released(self) -> list[str]:
        return sorted(f"fence {fence}" for fences in self.held.values() for fence in fences)

    def _dropped(self) -> list[str]:
        messages = [str(warning.message) for warning in self._warnings]
        matches = [_DROPPED.search(message) for message in messages]
        return sorted(
            message if match is None else f"fence {match[1]}" for message, match in zip(messages, matches, strict=True)
        )
