"""The layout of a picture of a history: rows, spans and marks, in seconds. Drawn by timeline.py and svg.py.

Each client has a row, with a lane for each concurrent call; the faults are above them. A long history is cut to the
time around a violation, and clients that are involved in it are kept first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from math import floor, log10
from typing import Literal, NamedTuple

from . import history as h
from .checkers import Violation
from .descriptions import describe

SpanKind = Literal["waiting", "holding", "expired", "paused", "down", "fault"]
MarkKind = Literal["gave up", "lost", "crashed", "state lost", "leftover", "wrote", "refused", "healed", "other"]

ROWS_MAX = 16
FAULTS_MAX = 6
EVENTS_BEFORE, EVENTS_AFTER = 24, 8  # shown around a violation, at least


class Span(NamedTuple):
    """A state over time. `expired` is a belief after its deadline, `down` a process between crash and restart."""

    start: float
    end: float
    kind: SpanKind
    label: str
    title: str
    is_involved: bool = False  # in the violation


class Mark(NamedTuple):
    """An event at one time."""

    at: float
    kind: MarkKind
    title: str
    is_involved: bool = False


class Row(NamedTuple):
    """A client or a fault. `states` are paused and down, drawn under all lanes."""

    label: str
    lanes: tuple[tuple[Span, ...], ...]
    states: tuple[Span, ...]
    marks: tuple[Mark, ...]


class Picture(NamedTuple):
    """The layout from `start` to `end`."""

    start: float
    end: float
    faults: tuple[Row, ...]
    clients: tuple[Row, ...]
    left_out: int  # clients without a row
    violation: Violation | None


def lay_out(
    history: Sequence[h.Event],
    violation: Violation | None = None,
    *,
    window: tuple[float, float] | None = None,
    rows_max: int = ROWS_MAX,
) -> Picture:
    """The layout of this history, or of the part around a violation that concerns its lock."""
    start, end = window or focus(history, violation)
    lock = violation.lock if violation is not None else None
    builder = _LayoutBuilder(
        start, end, lock, {id(event) for event in violation.events} if violation is not None else set()
    )
    for event in history:
        if event.at > end:
            break  # open spans are drawn to the edge of the picture
        builder.add_event(event)
    rows, left_out = builder.client_rows(rows_max)
    return Picture(start, end, builder.fault_rows(), rows, left_out, violation)


def focus(history: Sequence[h.Event], violation: Violation | None) -> tuple[float, float]:
    """The start and end of the picture; never an empty interval."""
    if not history:
        return 0.0, 1.0
    start, end = history[0].at, history[-1].at
    if violation is not None:
        times = [event.at for event in violation.events] + [violation.at]
        first = bisect_left(history, min(times), key=_at)
        last = bisect_right(history, max(times), key=_at) - 1
        around = max(0, min(first, last - EVENTS_BEFORE)), min(len(history) - 1, last + EVENTS_AFTER)
        near, far = history[around[0]].at, history[around[1]].at
        pad = 0.04 * (far - near)
        start, end = max(start, near - pad), min(end, far + pad)
    return (start, end) if end > start else (start - 0.5, start + 0.5)


def ticks(start: float, end: float, count: int) -> list[tuple[float, str]]:
    """About `count` round times in the interval, each with its label."""
    rough = (end - start) / max(1, count)
    power = floor(log10(rough))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= rough * 0.999)
    decimals = max(0, -floor(log10(step)))
    first = floor(start / step)
    times = (round(number * step, 9) for number in range(first, first + count * 3 + 3))
    return [(time, f"{time:.{decimals}f}") for time in times if start <= time <= end]


def _at(event: h.Event) -> float:
    return event.at


class _Call:
    """One call so far."""

    __slots__ = ("deadline", "granted", "is_involved", "started")

    def __init__(self, started: h.AcquireStarted | None) -> None:
        self.started = started
        self.granted: h.Granted | None = None
        self.deadline: float | None = None
        self.is_involved = False


class _Client:
    """The row of one client, under construction."""

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}  # open calls
        self.spans: list[Span] = []
        self.states: list[Span] = []
        self.marks: list[Mark] = []
        self.paused: float | None = None
        self.down: float | None = None
        self.is_involved = False


class _LayoutBuilder:
    """Adds events in order and collects the spans and marks in the window."""

    def __init__(self, start: float, end: float, lock: str | None, involved: set[int]) -> None:
        self.start, self.end, self.lock, self.involved = start, end, lock, involved
        self.clients: defaultdict[str, _Client] = defaultdict(_Client)
        self.faults: dict[tuple[str, str], list[Span]] = {}
        self.open_faults: dict[tuple[str, str], h.Event] = {}
        self.world: list[Mark] = []

    # ── adding events ────────────────────────────────────────────────────────────────────────────────────────────

    def add_event(self, event: h.Event) -> None:
        if isinstance(event, h.FaultStarted | h.Unreachable):
            self.open_faults.setdefault(_fault(event), event)
        elif isinstance(event, h.FaultEnded | h.Reachable):
            self._fault_over(_fault(event), event.at)
        elif isinstance(event, h.StateLost):
            self._mark(self.world, event, "state lost", "the server ")
        elif isinstance(event, h.Healed):
            self._mark(self.world, event, "healed")
        elif isinstance(event, h.Leftover):
            if id(event) in self.involved:
                self._mark(self.world, event, "leftover", "the server ")
        elif not isinstance(event, h.End) and self.lock in (None, getattr(event, "lock", self.lock)):
            self._add_client_event(self.clients[event.client], event)

    def _add_client_event(self, client: _Client, event: h.Event) -> None:
        is_involved = id(event) in self.involved
        client.is_involved |= is_involved
        match event:
            case h.AcquireStarted():
                client.calls[event.ticket] = _Call(event)
            case h.Granted():
                call = client.calls.setdefault(event.ticket, _Call(None))
                if call.granted is None:
                    self._waited(client, call, event.at)
                else:
                    self._held(client, call, call.granted, event.at)
                call.granted, call.deadline = event, event.deadline
            case h.Renewed():
                if event.ticket in client.calls:
                    client.calls[event.ticket].deadline = event.deadline
            case h.ReleaseStarted() | h.Lost() | h.AcquireFailed() | h.Reentered():
                self._end_call(client, event.ticket, event.at, is_involved=is_involved)
            case h.Paused():
                client.paused = event.at
            case h.Resumed():
                self._resumed(client, event.at)
            case h.Crashed():
                for ticket in list(client.calls):
                    self._end_call(client, ticket, event.at, is_involved=False)
                self._resumed(client, event.at)
                client.down = event.at
            case h.Restarted():
                self._restarted(client, event.at)
            case _:
                pass
        involved_call = client.calls.get(getattr(event, "ticket", None) or 0)
        if is_involved and involved_call is not None:
            involved_call.is_involved = True
        kind = _mark_kind(event)
        if kind != "other" or is_involved:
            self._mark(client.marks, event, kind)

    def _end_call(self, client: _Client, ticket: int, at: float, *, is_involved: bool) -> None:
        call = client.calls.pop(ticket, None)
        if call is None:
            return
        call.is_involved |= is_involved
        if call.granted is None:
            self._waited(client, call, at)
        else:
            self._held(client, call, call.granted, at)

    def _waited(self, client: _Client, call: _Call, until: float) -> None:
        if call.started is not None:
            title = f"waits for {call.started.lock!r} from {call.started.at:g} s to {until:g} s"
            self._add(client.spans, Span(call.started.at, until, "waiting", "", title, call.is_involved))

    def _held(self, client: _Client, call: _Call, granted: h.Granted, until: float) -> None:
        last = until if call.deadline is None else min(until, call.deadline)
        title = f"{describe(granted)}; believed from {granted.at:g} s to {last:g} s"
        self._add(client.spans, Span(granted.at, last, "holding", str(granted.fence), title, call.is_involved))
        if last < until:
            title = f"has not noticed that its deadline for {granted.lock!r} has passed, from {last:g} s to {until:g} s"
            self._add(client.spans, Span(last, until, "expired", "", title, call.is_involved))

    def _resumed(self, client: _Client, at: float) -> None:
        if client.paused is not None:
            title = f"paused from {client.paused:g} s to {at:g} s"
            self._add(client.states, Span(client.paused, at, "paused", "", title))
            client.paused = None

    def _restarted(self, client: _Client, at: float) -> None:
        if client.down is not None:
            self._add(client.states, Span(client.down, at, "down", "", f"down from {client.down:g} s to {at:g} s"))
            client.down = None

    def _fault_over(self, key: tuple[str, str], at: float) -> None:
        started = self.open_faults.pop(key, None)
        if started is not None:
            title = f"{' '.join(filter(None, key))}, from {started.at:g} s to {at:g} s"
            self._add(self.faults.setdefault(key, []), Span(started.at, at, "fault", key[1], title))

    def _mark(self, marks: list[Mark], event: h.Event, kind: MarkKind, subject: str = "") -> None:
        if self.start <= event.at <= self.end:
            marks.append(
                Mark(event.at, kind, f"{event.at:g} s: {subject}{describe(event)}", id(event) in self.involved)
            )

    def _add(self, spans: list[Span], span: Span) -> None:
        if span.end >= self.start and span.start <= self.end:
            spans.append(span._replace(start=max(span.start, self.start), end=min(span.end, self.end)))

    # ── making rows ──────────────────────────────────────────────────────────────────────────────────────────────

    def client_rows(self, rows_max: int) -> tuple[tuple[Row, ...], int]:
        """In order of appearance. If there are too many, clients in the violation come first."""
        for client in self.clients.values():
            for ticket in list(client.calls):
                self._end_call(client, ticket, self.end, is_involved=False)
            self._resumed(client, self.end)
            self._restarted(client, self.end)
        visible = [name for name, client in self.clients.items() if client.spans or client.states or client.marks]
        chosen = set(sorted(visible, key=lambda name: not self.clients[name].is_involved)[:rows_max])
        rows = [
            Row(name, _lanes(client.spans), tuple(client.states), tuple(client.marks))
            for name, client in self.clients.items()
            if name in chosen
        ]
        return tuple(rows), len(visible) - len(rows)

    def fault_rows(self) -> tuple[Row, ...]:
        for key in list(self.open_faults):
            self._fault_over(key, self.end)
        by_name: dict[str, list[Span]] = {}
        for (name, _), spans in self.faults.items():
            by_name.setdefault(name, []).extend(spans)
        rows = [
            Row(name, _lanes(sorted(spans, key=lambda span: span.start))[:2], (), ())
            for name, spans in by_name.items()
            if spans
        ][:FAULTS_MAX]
        if self.world:
            rows.append(Row("server", ((),), (), tuple(self.world)))
        return tuple(rows)


def _fault(event: h.FaultStarted | h.FaultEnded | h.Unreachable | h.Reachable) -> tuple[str, str]:
    if isinstance(event, h.Unreachable | h.Reachable):
        return "cut off", event.client or "all"
    return event.name, event.detail


def _mark_kind(event: h.Event) -> MarkKind:
    match event:
        case h.AcquireFailed():
            return "gave up"
        case h.Lost():
            return "lost"
        case h.Crashed():
            return "crashed"
        case h.Wrote() | h.Read():
            return "wrote" if event.accepted else "refused"
        case _:
            return "other"


def _lanes(spans: list[Span]) -> tuple[tuple[Span, ...], ...]:
    """The fewest lanes in which no two spans of one lane overlap."""
    lanes: list[list[Span]] = [[]]
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        lane = next((lane for lane in lanes if not lane or lane[-1].end <= span.start), None)
        if lane is None:
            lane = []
            lanes.append(lane)
        lane.append(span)
    return tuple(tuple(lane) for lane in lanes)
