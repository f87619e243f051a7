"""Are the locks of one `lock_all` call acquired, lost and released together?"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Checked,
    Crashed,
    Granted,
    Lost,
    ReleaseStarted,
    Renewed,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker

REQUESTED, GRANTED, GIVEN_UP, RELEASED, LOST = "requested", "granted", "given up", "released", "lost"


class AllOrNothing(Checker):
    """A call for several locks gets all of them at once or none; they are lost together and released together.

    After the call has failed, none of its leases reports that it is held. "Nothing left" checks for tickets on the
    server, and "steady progress" for deadlocks between calls. The answer to a release may report the loss of one lock.
    """

    name = "whole groups"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._calls: dict[int, _Call] = {}  # by group
        self._by_ticket: dict[int, _Call] = {}
        self._of_client: defaultdict[str, list[_Call]] = defaultdict(list)  # since the client last crashed
        self.on = {
            AcquireStarted: self._acquire_started,
            Granted: self._granted,
            AcquireFailed: self._acquire_failed,
            ReleaseStarted: self._released,
            Lost: self._lost,
            Renewed: self._renewed,
            Checked: self._checked,
            Crashed: self._crashed,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._calls)

    def _acquire_started(self, event: AcquireStarted) -> None:
        if event.group is None:
            return
        call = self._calls.get(event.group)
        if call is None:
            call = self._calls[event.group] = _Call()
            self._of_client[event.client].append(call)
        call.phases[event.ticket] = REQUESTED
        call.events[event.ticket] = event
        self._by_ticket[event.ticket] = call

    def _granted(self, event: Granted) -> None:
        self._set_phase(event, GRANTED, REQUESTED)

    def _acquire_failed(self, event: AcquireFailed) -> None:
        self._set_phase(event, GIVEN_UP, REQUESTED)

    def _released(self, event: ReleaseStarted) -> None:
        self._set_phase(event, RELEASED, GRANTED)

    def _lost(self, event: Lost) -> None:
        call = self._by_ticket.get(event.ticket)
        if call is not None and call.phases[event.ticket] != RELEASED:  # otherwise it is the answer to the release
            self._set_phase(event, LOST, GRANTED)

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
            message = f"{event.client} gave up the call that {event.lock!r} is part of, but still holds it"
            self.violated(event.at, event.lock, message, call.events[event.ticket], event)

    def _crashed(self, event: Crashed) -> None:
        for call in self._of_client.pop(event.client, ()):
            call.overdue_phase = ""

    def _set_phase(self, event: Granted | AcquireFailed | ReleaseStarted | Lost, phase: str, before: str) -> None:
        """One ticket enters this phase: all tickets of the call in the phase before must follow at the same time."""
        call = self._by_ticket.get(event.ticket)
        if call is None:
            return
        self._judge(call, event.at)
        call.phases[event.ticket] = phase
        call.events[event.ticket] = event
        call.last_change, call.overdue_phase = event, before if before in call.phases.values() else ""

    def _judge(self, call: _Call, now: float) -> None:
        """If time has passed since the last change, check that no ticket is still in the phase before it."""
        last_change, before = call.last_change, call.overdue_phase
        if not before or last_change is None or now <= last_change.at:
            return
        call.overdue_phase = ""  # report each call once
        other = next(ticket for ticket, phase in call.phases.items() if phase == before)
        other_event = call.events[other]
        message = (
            f"{last_change.client}'s {last_change.lock!r} was {call.phases[last_change.ticket]} alone: "
            f"{other_event.lock!r}, part of the same call, was still {before}"
        )
        self.violated(last_change.at, last_change.lock, message, other_event, last_change)

    def finish(self, at: float) -> None:
        for call in self._calls.values():
            self._judge(call, at)


class _Call:
    """One call for several locks."""

    __slots__ = ("events", "last_change", "overdue_phase", "phases")

    def __init__(self) -> None:
        self.phases: dict[int, str] = {}  # by ticket
        self.events: dict[
            int, AcquireStarted | Granted | AcquireFailed | ReleaseStarted | Lost
        ] = {}  # the event that led to each phase
        self.last_change: Granted | AcquireFailed | ReleaseStarted | Lost | None = None  # the last change of a ticket
        self.overdue_phase = ""  # the phase that the other tickets must leave
