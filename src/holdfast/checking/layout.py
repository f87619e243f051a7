"""Where things are in a picture of a history: rows, spans and marks in seconds. Drawn by timeline.py and svg.py.

One row a client, with a lane for each call that it makes at the same time; above them the faults. A long history is
shown around a violation, and of the clients then those that have a part in it first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from math import floor, log10
from typing import Literal, NamedTuple

from . import history as h
from .checkers import Violation
from .words import in_words

SpanKind = Literal["waiting", "holding", "expired", "paused", "down", "fault"]
MarkKind = Literal["gave up", "lost", "crashed", "forgot", "remained", "wrote", "refused", "healed", "other"]

ROWS_MAX = 16
FAULTS_MAX = 6
EVENTS_BEFORE, EVENTS_AFTER = 24, 8  # what is shown around a violation, if the events in it are not further apart


class Span(NamedTuple):
    """Something that lasts. `expired` is a belief after its deadline, `down` a process between crash and restart."""

    start: float
    end: float
    kind: SpanKind
    label: str
    title: str
    is_guilty: bool = False  # it has a part in the violation


class Mark(NamedTuple):
    """Something that happens at a moment."""

    at: float
    kind: MarkKind
    title: str
    is_guilty: bool = False


class Row(NamedTuple):
    """A client or a fault. `states` are paused and down: they lie under all lanes."""

    label: str
    lanes: tuple[tuple[Span, ...], ...]
    states: tuple[Span, ...]
    marks: tuple[Mark, ...]


class Picture(NamedTuple):
    """What is drawn, from `start` to `end`."""

    start: float
    end: float
    faults: tuple[Row, ...]
    clients: tuple[Row, ...]
    left_out: int  # clients that there was no room for
    violation: Violation | None


def lay_out(
    history: Sequence[h.Event],
    violation: Violation | None = None,
    *,
    window: tuple[float, float] | None = None,
    rows_max: int = ROWS_MAX,
) -> Picture:
    """The picture of this history, or of the part of it around a violation and about its lock."""
    start, end = window or focus(history, violation)
    lock = violation.lock if violation is not None else None
    scene = _Scene(start, end, lock, {id(event) for event in violation.events} if violation is not None else set())
    for event in history:
        if event.at > end:
            break  # what is still open then goes on to the edge of the picture
        scene.see(event)
    rows, left_out = scene.client_rows(rows_max)
    return Picture(start, end, scene.fault_rows(), rows, left_out, violation)


def focus(history: Sequence[h.Event], violation: Violation | None) -> tuple[float, float]:
    """From when to when a picture of it should be: never empty."""
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
    """About that many round times within, each with its label."""
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
    """What is known of one call so far."""

    __slots__ = ("asked", "deadline", "granted", "is_guilty")

    def __init__(self, asked: h.AcquireStarted | None) -> None:
        self.asked = asked
        self.granted: h.Granted | None = None
        self.deadline: float | None = None
        self.is_guilty = False


class _Client:
    """One client's row in the making."""

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}  # that go on
        self.spans: list[Span] = []
        self.states: list[Span] = []
        self.marks: list[Mark] = []
        self.paused: float | None = None
        self.down: float | None = None
        self.is_guilty = False


class _Scene:
    """Sees the events in order and puts together what lies in the window."""

    def __init__(self, start: float, end: float, lock: str | None, guilty: set[int]) -> None:
        self.start, self.end, self.lock, self.guilty = start, end, lock, guilty
        self.clients: defaultdict[str, _Client] = defaultdict(_Client)
        self.faults: dict[tuple[str, str], list[Span]] = {}
        self.open_faults: dict[tuple[str, str], h.Event] = {}
        self.world: list[Mark] = []

    # ── seeing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def see(self, event: h.Event) -> None:
        if isinstance(event, h.FaultStarted | h.Unreachable):
            self.open_faults.setdefault(_fault(event), event)
        elif isinstance(event, h.FaultEnded | h.Reachable):
            self._fault_over(_fault(event), event.at)
        elif isinstance(event, h.StateLost):
            self._mark(self.world, event, "forgot", "the server ")
        elif isinstance(event, h.Healed):
            self._mark(self.world, event, "healed")
        elif isinstance(event, h.Leftover):
            if id(event) in self.guilty:
                self._mark(self.world, event, "remained", "the server ")
        elif not isinstance(event, h.End) and self.lock in (None, getattr(event, "lock", self.lock)):
            self._of_client(self.clients[event.client], event)

    def _of_client(self, client: _Client, event: h.Event) -> None:
        is_guilty = id(event) in self.guilty
        client.is_guilty |= is_guilty
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
                self._end_call(client, event.ticket, event.at, is_guilty=is_guilty)
            case h.Paused():
                client.paused = event.at
            case h.Resumed():
                self._resumed(client, event.at)
            case h.Crashed():
                for ticket in list(client.calls):
                    self._end_call(client, ticket, event.at, is_guilty=False)
                self._resumed(client, event.at)
                client.down = event.at
            case h.Restarted():
                self._restarted(client, event.at)
            case _:
                pass
        call_of = client.calls.get(getattr(event, "ticket", None) or 0)
        if is_guilty and call_of is not None:
            call_of.is_guilty = True
        kind = _mark_kind(event)
        if kind != "other" or is_guilty:
            self._mark(client.marks, event, kind)

    def _end_call(self, client: _Client, ticket: int, at: float, *, is_guilty: bool) -> None:
        call = client.calls.pop(ticket, None)
        if call is None:
            return
        call.is_guilty |= is_guilty
        if call.granted is None:
            self._waited(client, call, at)
        else:
            self._held(client, call, call.granted, at)

    def _waited(self, client: _Client, call: _Call, until: float) -> None:
        if call.asked is not None:
            title = f"waits for {call.asked.lock!r} from {call.asked.at:g} s to {until:g} s"
            self._add(client.spans, Span(call.asked.at, until, "waiting", "", title, call.is_guilty))

    def _held(self, client: _Client, call: _Call, granted: h.Granted, until: float) -> None:
        over = until if call.deadline is None else min(until, call.deadline)
        title = f"{in_words(granted)}; believed from {granted.at:g} s to {over:g} s"
        self._add(client.spans, Span(granted.at, over, "holding", str(granted.fence), title, call.is_guilty))
        if over < until:
            title = (
                f"its deadline for {granted.lock!r} has passed, but it has not noticed, from {over:g} s to {until:g} s"
            )
            self._add(client.spans, Span(over, until, "expired", "", title, call.is_guilty))

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
        began = self.open_faults.pop(key, None)
        if began is not None:
            title = f"{' '.join(filter(None, key))}, from {began.at:g} s to {at:g} s"
            self._add(self.faults.setdefault(key, []), Span(began.at, at, "fault", key[1], title))

    def _mark(self, marks: list[Mark], event: h.Event, kind: MarkKind, subject: str = "") -> None:
        if self.start <= event.at <= self.end:
            marks.append(Mark(event.at, kind, f"{event.at:g} s: {subject}{in_words(event)}", id(event) in self.guilty))

    def _add(self, spans: list[Span], span: Span) -> None:
        if span.end >= self.start and span.start <= self.end:
            spans.append(span._replace(start=max(span.start, self.start), end=min(span.end, self.end)))

    # ── putting together ─────────────────────────────────────────────────────────────────────────────────────────

    def client_rows(self, rows_max: int) -> tuple[tuple[Row, ...], int]:
        """In order of appearance. If there are too many, those with a part in the violation come first."""
        for client in self.clients.values():
            for ticket in list(client.calls):
                self._end_call(client, ticket, self.end, is_guilty=False)
            self._resumed(client, self.end)
            self._restarted(client, self.end)
        there = [name for name, client in self.clients.items() if client.spans or client.states or client.marks]
        chosen = set(sorted(there, key=lambda name: not self.clients[name].is_guilty)[:rows_max])
        rows = [
            Row(name, _lanes(client.spans), tuple(client.states), tuple(client.marks))
            for name, client in self.clients.items()
            if name in chosen
        ]
        return tuple(rows), len(there) - len(rows)

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
    """As few lanes as it takes for spans in one lane not to overlap."""
    lanes: list[list[Span]] = [[]]
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        lane = next((lane for lane in lanes if not lane or lane[-1].end <= span.start), None)
        if lane is None:
            lane = []
            lanes.append(lane)
        lane.append(span)
    return tuple(tuple(lane) for lane in lanes)
