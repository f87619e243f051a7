"""Is what was taken together one thing? All of it or nothing, from one moment on, to one end."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Checked,
    Crashed,
    Granted,
    Lost,
    ReleaseStarted,
    Renewed,
)
from holdfast.checking.promises import Promises

from .base import Checker

ASKED, GRANTED, GIVEN_UP, RELEASED, LOST = "asked for", "granted", "given up", "released", "lost"


class AllOrNothing(Checker):
    """A call for several locks gets all of them at one moment or none; they are lost together and given back together.

    After it gave up, no lease of it says that it is held. What it leaves on the server is for "nothing left"; that
    calls do not wait for each other for ever is for "steady progress". The answer to a release may tell of one loss.
    """

    name = "all together"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._calls: dict[int, _Call] = {}  # by bundle
        self._by_ticket: dict[int, _Call] = {}
        self._of_client: defaultdict[str, list[_Call]] = defaultdict(list)  # since the client last crashed
        self.on = {
            AcquireStarted: self._asked,
            Granted: self._granted,
            AcquireFailed: self._gave_up,
            ReleaseStarted: self._released,
            Lost: self._lost,
            Renewed: self._renewed,
            Checked: self._checked,
            Crashed: self._crashed,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._calls)

    def _asked(self, event: AcquireStarted) -> None:
        if event.group is None:
            return
        call = self._calls.get(event.group)
        if call is None:
            call = self._calls[event.group] = _Call()
            self._of_client[event.client].append(call)
        call.phases[event.ticket] = ASKED
        call.events[event.ticket] = event
        self._by_ticket[event.ticket] = call

    def _granted(self, event: Granted) -> None:
        self._moved(event, GRANTED, ASKED)

    def _gave_up(self, event: AcquireFailed) -> None:
        self._moved(event, GIVEN_UP, ASKED)

    def _released(self, event: ReleaseStarted) -> None:
        self._moved(event, RELEASED, GRANTED)

    def _lost(self, event: Lost) -> None:
        call = self._by_ticket.get(event.ticket)
        if call is not None and call.phases[event.ticket] != RELEASED:  # which would be the answer to the release
            self._moved(event, LOST, GRANTED)

    def _renewed(self, event: Renewed) -> None:
        call = self._by_ticket.get(event.ticket)
        if call is not None:
            self._judge(call, event.at)

    def _checked(self, event: Checked) -> None:
        call = self._by_ticket.get(event.ticket)
        if call is None:
            return
        self._judge(call, event.at)
        if event.held and call.phases[event.ticket] == GIVEN_UP:
            what = f"{event.client} gave up the call that {event.lock!r} is part of, and holds it all the same"
            self.violated(event.at, event.lock, what, call.events[event.ticket], event)

    def _crashed(self, event: Crashed) -> None:
        for call in self._of_client.pop(event.client, ()):
            call.left_behind = ""

    def _moved(self, event: Granted | AcquireFailed | ReleaseStarted | Lost, phase: str, before: str) -> None:
        """One of them is now in this phase: at this moment all that were in the phase before have to follow."""
        call = self._by_ticket.get(event.ticket)
        if call is None:
            return
        self._judge(call, event.at)
        call.phases[event.ticket] = phase
        call.events[event.ticket] = event
        call.moved, call.left_behind = event, before if before in call.phases.values() else ""

    def _judge(self, call: _Call, now: float) -> None:
        """Time has gone on since the last of them changed: has all that was to follow?"""
        moved, before = call.moved, call.left_behind
        if not before or moved is None or now <= moved.at:
            return
        call.left_behind = ""  # once is enough
        other = next(ticket for ticket, phase in call.phases.items() if phase == before)
        there = call.events[other]
        what = (
            f"{moved.client}'s {moved.lock!r} was {call.phases[moved.ticket]} alone: "
            f"{there.lock!r}, which it took together with that, was still {before}"
        )
        self.violated(moved.at, moved.lock, what, there, moved)

    def finish(self, at: float) -> None:
        for call in self._calls.values():
            self._judge(call, at)


class _Call:
    """One call for several locks."""

    __slots__ = ("events", "left_behind", "moved", "phases")

    def __init__(self) -> None:
        self.phases: dict[int, str] = {}  # by ticket
        self.events: dict[
            int, AcquireStarted | Granted | AcquireFailed | ReleaseStarted | Lost
        ] = {}  # what brought each to its phase
        self.moved: Granted | AcquireFailed | ReleaseStarted | Lost | None = None  # the last change of one of them
        self.left_behind = ""  # the phase that some are in which have to follow that one
