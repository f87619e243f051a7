"""The interface of a checker: a name, a promise in one sentence, and a handler for each type of event that it needs.

A checker receives each event once, in order. Each event takes amortised constant time, so a history is checked in
linear time. A checker reads no clock, and a reported violation is final.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from holdfast.guarantees import Exclusion
from holdfast_lab.checking.history import Event, StateLost
from holdfast_lab.checking.promises import Promises

VIOLATIONS_MAX = 50  # violations that each checker keeps; the first ones are enough to explain a broken lock
NEVER = float("-inf")


class Violation(NamedTuple):
    """One violation of one promise: the time, one sentence, and the events that show it."""

    checker: str
    promise: str
    at: float
    lock: str | None
    message: str
    events: tuple[Event, ...]


class Checker:
    """Base class. A subclass sets `on`; the first line of its docstring is the promise, printed when it is broken."""

    name: ClassVar[str]

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self.violations: list[Violation] = []
        self.notes: list[Violation] = []  # worth knowing, but no promise is broken
        self.broken = 0  # the number of violations, kept or not
        self.on: dict[type, Callable[[Any], None]] = {}

    @property
    def promise(self) -> str:
        """The first line of the docstring."""
        return (type(self).__doc__ or self.name).strip().partition("\n")[0]

    @property
    def was_tested(self) -> bool:
        """Whether the history had anything to check; a promise that was not tested does not count as kept."""
        return bool(self.on)

    def feed(self, event: Event) -> None:
        """Handle the next event. A caller with many checkers can call the functions in `on` directly."""
        handle = self.on.get(type(event))
        if handle is not None:
            handle(event)

    def finish(self, at: float) -> None:
        """The history ended at this time: check everything that is still open."""

    def may_end_leases(self, event: StateLost) -> bool:
        """Whether this loss may end leases. With consensus, a minority that loses its data does not."""
        is_safe = event.kind == "data" and self.promises.exclusion is Exclusion.CONSENSUS and not event.majority
        return event.kind != "clock" and not is_safe

    def violated(self, at: float, lock: str | None, message: str, *events: Event | None) -> None:
        """Report a violation; `events` in the order in which they happened."""
        self.broken += 1
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(self._make_violation(at, lock, message, events))

    def note(self, at: float, lock: str | None, message: str, *events: Event | None) -> None:
        """Report an observation that is not a violation."""
        if len(self.notes) < VIOLATIONS_MAX:
            self.notes.append(self._make_violation(at, lock, message, events))

    def _make_violation(self, at: float, lock: str | None, message: str, events: tuple[Event | None, ...]) -> Violation:
        return Violation(
            self.name, self.promise, at, lock, message, tuple(event for event in events if event is not None)
        )
