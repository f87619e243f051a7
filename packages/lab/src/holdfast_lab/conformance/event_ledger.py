"""A subscriber that checks that the events of a client add up, and counts them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import holdfast
from holdfast.core.events import OUTCOMES

_BEFORE = {
    "acquiring": None,
    "queued": "acquiring",
    "acquired": "acquiring",
    "not acquired": "acquiring",
    "started": "acquired",
    "renewed": "acquired",
    "renewal failed": "acquired",
    "revoke requested": "acquired",
    "lost": "acquired",
    "released": "acquired",
}


class Ledger:
    """`open` has the attempts that have not ended: number -> "acquiring" or "acquired"."""

    def __init__(self, client: Any) -> None:
        self.open: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()  # kind and outcome
        self.kinds: Counter[str] = Counter()
        self.events: list[holdfast.Event] = []
        self.problems: list[str] = []
        self._ended: set[int] = set()
        client.subscribe(self)

    def __call__(self, event: holdfast.Event) -> None:
        self.events.append(event)
        self.kinds[event.kind] += 1
        self.outcomes[f"{event.kind}: {event.outcome}"] += 1
        if event.kind == "skipped":
            return
        state = self.open.get(event.attempt)
        if event.attempt in self._ended or state != _BEFORE[event.kind]:
            self.problems.append(f"{event} after {'its end' if event.attempt in self._ended else state}")
        if event.kind in OUTCOMES and event.outcome not in OUTCOMES[event.kind]:
            self.problems.append(f"unknown outcome: {event}")
        if event.kind in ("acquiring", "acquired"):
            self.open[event.attempt] = event.kind
        elif event.kind in OUTCOMES:
            self.open.pop(event.attempt, None)
            self._ended.add(event.attempt)

    def check(self) -> None:
        """All attempts have ended, each once."""
        assert not self.problems
        assert not self.open
        assert self.kinds["acquiring"] == self.kinds["acquired"] + self.kinds["not acquired"]
        assert self.kinds["acquired"] == self.kinds["lost"] + self.kinds["released"]

    def is_balanced(self) -> bool:
        return not self.open

    def path(self, lock: str) -> list[str]:
        """The kinds of the events of this lock, each with its outcome if it has one."""
        events = [event for event in self.events if event.lock == lock]
        return [f"{event.kind}: {event.outcome}" if event.outcome else event.kind for event in events]
