"""The verdict on a history, and a short report of it for people.

verdict = judge(history, Promises.of(client.guarantees, ttl=10))
print(report(history, verdict))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from . import history as h
from .checkers import CHECKERS, Checker, FencedWrites, Violation
from .descriptions import describe, subject
from .promises import Promises
from .timeline import WIDTH, timeline

_LINES_BEFORE, _LINES_AFTER = 10, 3


class Statistics(NamedTuple):
    """Counts of the events in a history."""

    events: int
    seconds: float
    calls: int
    grants: int
    longest_wait: float  # of granted calls
    timeouts: int
    failures: int  # calls that ended for another reason: unavailable, unknown, cancelled, error
    losses: int
    pauses: int
    crashes: int
    faults: int
    state_losses: int
    refused: int  # writes and reads that the resource refused for their fence
    stale_writes: int  # by an older holder after a newer one, on a resource that checks no fences
    lost_updates: int  # likewise


class Verdict(NamedTuple):
    """The result of all checkers; violations in the order of time, the first ones of each checker."""

    ok: bool
    violations: tuple[Violation, ...]
    notes: tuple[Violation, ...]  # anomalies that break no promise
    broken: dict[str, int]  # violations of each promise that was tested; 0 if it was kept
    statistics: Statistics

    @property
    def gravest(self) -> Violation | None:
        """The first violation of the gravest broken promise, by the order of the checkers."""
        order = list(self.broken)
        return min(self.violations, key=lambda violation: (order.index(violation.checker), violation.at), default=None)


def judge(history: Iterable[h.Event], promises: Promises | None = None) -> Verdict:
    """Check a history against the promises.

    Raises:
        ValueError: the events are not in the order of time.
    """
    judging = Judge(promises)
    feed = judging.feed
    for event in history:
        feed(event)
    return judging.verdict()


class Judge:
    """Checks a history event by event, for callers that stop at the first violation."""

    def __init__(self, promises: Promises | None = None, checkers: Sequence[type[Checker]] = CHECKERS) -> None:
        self.checkers = [checker(promises or Promises()) for checker in checkers]
        self._counts: dict[type, int] = dict.fromkeys(h.EVENT_TYPES, 0)  # type: ignore[arg-type]  # all are types; mypy sees a union
        self._waits = _Waits()
        self._start: float | None = None
        self._now = float("-inf")
        # One dictionary look-up for each event; only the handlers of its type are called.
        handlers: list[dict[type, Callable[[Any], None]]] = [checker.on for checker in self.checkers]
        handlers.append(self._waits.on)
        self._handlers: dict[type, tuple[Callable[[Any], None], ...]] = {
            kind: tuple(on[kind] for on in handlers if kind in on) for kind in self._counts
        }

    def feed(self, event: h.Event) -> None:
        """Handle the next event."""
        at = event[0]
        if at < self._now:
            raise ValueError(f"not in the order of time: {event} after {self._now:g} s")
        self._now = at
        if self._start is None:
            self._start = at
        kind = type(event)
        self._counts[kind] += 1
        for handle in self._handlers[kind]:
            handle(event)

    @property
    def broken(self) -> int:
        """The number of violations so far."""
        return sum(checker.broken for checker in self.checkers)

    def verdict(self) -> Verdict:
        """End the history: check everything that is still open. Call it once."""
        end = 0.0 if self._start is None else self._now
        for checker in self.checkers:
            checker.finish(end)
        violations = [violation for checker in self.checkers for violation in checker.violations]
        notes = [note for checker in self.checkers for note in checker.notes]
        return Verdict(
            ok=not violations,
            violations=tuple(sorted(violations, key=lambda violation: violation.at)),
            notes=tuple(sorted(notes, key=lambda violation: violation.at)),
            broken={checker.name: checker.broken for checker in self.checkers if checker.was_tested},
            statistics=self._statistics(end),
        )

    def _statistics(self, end: float) -> Statistics:
        counts, waits = self._counts, self._waits
        writes = next((checker for checker in self.checkers if isinstance(checker, FencedWrites)), None)
        return Statistics(
            events=sum(counts.values()),
            seconds=end - (self._start or 0.0),
            calls=counts[h.AcquireStarted],
            grants=counts[h.Granted],
            longest_wait=waits.longest,
            timeouts=waits.timeouts,
            failures=counts[h.AcquireFailed] - waits.timeouts,
            losses=counts[h.Lost],
            pauses=counts[h.Paused],
            crashes=counts[h.Crashed],
            faults=counts[h.FaultStarted],
            state_losses=counts[h.StateLost],
            refused=writes.refused if writes is not None else 0,
            stale_writes=writes.stale_writes if writes is not None else 0,
            lost_updates=writes.lost_updates if writes is not None else 0,
        )


def report(history: Sequence[h.Event], verdict: Verdict, *, width: int = WIDTH) -> str:
    """The broken promise in one sentence, a timeline, and the events around the violation."""
    first = verdict.gravest
    if first is None:
        kept = f"All promises kept: {', '.join(verdict.broken)}."
        return "\n".join([*wrap(kept, width), *wrap(_summary(verdict.statistics), width), ""])
    lines = [
        *wrap(f"BROKEN  {first.checker}: {first.promise}", width, subsequent_indent=" " * 8),
        *wrap(f"At {first.at:g} s {first.message}.", width, initial_indent=" " * 8, subsequent_indent=" " * 8),
        "",
        timeline(history, first, width=width),
        *_around(history, first),
        "",
    ]
    counts = ", ".join(f"{name} {count}" for name, count in verdict.broken.items() if count)
    kept = ", ".join(name for name, count in verdict.broken.items() if not count)
    lines += [
        *wrap(f"Violations: {counts}. Kept: {kept or 'none'}.", width),
        *wrap(_summary(verdict.statistics), width),
        "",
    ]
    return "\n".join(lines)


def _around(history: Sequence[h.Event], violation: Violation) -> list[str]:
    """The events of the violation, marked, and the last events of its lock before it."""
    involved = {id(event) for event in violation.events}
    chosen = {index for index, event in _relevant(history, violation) if id(event) in involved}
    middle = max(chosen, default=bisect_left(history, violation.at, key=lambda event: event.at))
    near = [index for index, _ in _relevant(history, violation)]
    split = bisect_left(near, middle)
    chosen.update(near[max(0, split - _LINES_BEFORE) : split + _LINES_AFTER + 1])
    lines = []
    last = None
    for index in sorted(chosen):
        if last is not None and near[bisect_left(near, index) - 1] != last:
            lines.append("          …")
        event = history[index]
        arrow = "->" if id(event) in involved else "  "
        lines.append(f"  {arrow} {event.at:>11.6f}  {subject(event):<12} {describe(event)}")
        last = index
    return lines


def _relevant(history: Sequence[h.Event], violation: Violation) -> Iterable[tuple[int, h.Event]]:
    lock = violation.lock
    for index, event in enumerate(history):
        if lock is None or getattr(event, "lock", lock) in (lock, None):
            yield index, event


def _summary(statistics: Statistics) -> str:
    """The counts that are not zero, in one line."""
    words = {
        "calls": "calls",
        "grants": "grants",
        "timeouts": "timeouts",
        "failures": "failed calls",
        "losses": "losses",
        "pauses": "pauses",
        "crashes": "crashes",
        "faults": "faults",
        "state_losses": "state losses of the server",
        "refused": "accesses refused for their fence",
        "stale_writes": "stale writes where no fence was checked",
        "lost_updates": "updates lost where no fence was checked",
    }
    values = statistics._asdict()
    counted = [f"{word}: {values[field]:,}" for field, word in words.items() if values[field]]
    wait = f"longest wait: {statistics.longest_wait:.3g} s"
    return f"{statistics.events:,} events in {statistics.seconds:.6g} s; {', '.join([*counted, wait])}."


class _Waits:
    """The longest wait that ended in a grant, and the number of timeouts."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.timeouts = 0
        self._since: dict[int, float] = {}
        self.on: dict[type, Callable[[Any], None]] = {
            h.AcquireStarted: self._acquire_started,
            h.Granted: self._granted,
            h.AcquireFailed: self._acquire_failed,
        }

    def _acquire_started(self, event: h.AcquireStarted) -> None:
        self._since[event.ticket] = event.at

    def _granted(self, event: h.Granted) -> None:
        waited = event.at - self._since.pop(event.ticket, event.at)
        self.longest = max(self.longest, waited)

    def _acquire_failed(self, event: h.AcquireFailed) -> None:
        self._since.pop(event.ticket, None)
        self.timeouts += event.outcome == "timed out"
