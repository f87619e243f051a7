"""What every checker is: a name, a promise in one sentence, and a table of which event it looks at and how.

A checker sees each event once, in order, and keeps what it needs of it: constant time for each event, amortised, so a
whole history is judged in linear time. It never looks at a clock, and never changes its mind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from holdfast.checking.history import Event
from holdfast.checking.promises import Promises

FOUND_MAX = 50  # violations kept by each checker; a broken lock breaks often, and the first ones tell the story
NEVER = float("-inf")


class Violation(NamedTuple):
    """One promise broken once: the moment, what happened in one sentence, and the events that show it."""

    checker: str
    promise: str
    at: float
    lock: str | None
    what: str
    events: tuple[Event, ...]


class Checker:
    """Subclasses fill `on` with the events they look at. Their docstring is the promise, printed when it breaks."""

    name: ClassVar[str]

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self.violations: list[Violation] = []
        self.notes: list[Violation] = []  # worth knowing, but nobody promised otherwise
        self.broken = 0  # how many violations there were, kept or not
        self.on: dict[type, Callable[[Any], None]] = {}

    @property
    def promise(self) -> str:
        """The first line of the docstring."""
        return (type(self).__doc__ or self.name).strip().partition("\n")[0]

    @property
    def was_tested(self) -> bool:
        """There was something to judge; a promise that nobody put to the test was not kept either."""
        return bool(self.on)

    def feed(self, event: Event) -> None:
        """Look at the next event. Whoever feeds many checkers can call the functions in `on` directly."""
        look = self.on.get(type(event))
        if look is not None:
            look(event)

    def finish(self, at: float) -> None:
        """The history ended at this moment: what is still open is judged now."""

    def violated(self, at: float, lock: str | None, what: str, *events: Event | None) -> None:
        """Report it; `events` in the order in which they happened."""
        self.broken += 1
        if len(self.violations) < FOUND_MAX:
            self.violations.append(self._finding(at, lock, what, events))

    def note(self, at: float, lock: str | None, what: str, *events: Event | None) -> None:
        """Report something that is no violation."""
        if len(self.notes) < FOUND_MAX:
            self.notes.append(self._finding(at, lock, what, events))

    def _finding(self, at: float, lock: str | None, what: str, events: tuple[Event | None, ...]) -> Violation:
        return Violation(self.name, self.promise, at, lock, what, tuple(event for event in events if event is not None))
