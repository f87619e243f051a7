"""Is a lock with `min_hold` kept for that long, also after its release and after the crash of its holder?"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import AcquireStarted, Granted, ServerGranted, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class MinimumHolds(Checker):
    """After a grant with a minimum hold, no conflicting ticket is granted until it is over.

    It counts from the grant by the server. A release, a transfer, a loss or a crash of the holder does not end it. A
    call that adopts the lease does not conflict with it.
    """

    name = "minimum holds"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._server_granted: dict[int, float] = {}  # by ticket
        self._first: dict[int, int] = {}  # ticket of a call to adopt -> ticket of the first lease of its chain
        self._by_lock: defaultdict[str, dict[int, tuple[Granted, float]]] = defaultdict(dict)  # with the end
        self._was_tested = False
        self._in_flight = GrantsInFlight(promises)
        self.on = {
            **self._in_flight.on,
            AcquireStarted: self._acquire_started,
            Granted: self._granted,
            StateLost: self._state_lost,
        }
        if promises.sees_server:
            self.on[ServerGranted] = self._on_server_granted  # passes the event on

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _acquire_started(self, event: AcquireStarted) -> None:
        if not self.promises.sees_server:
            self._in_flight.on[AcquireStarted](event)
        if event.adopts is not None:
            self._first[event.ticket] = self._first.get(event.adopts, event.adopts)

    def _on_server_granted(self, event: ServerGranted) -> None:
        self._in_flight.on[ServerGranted](event)
        self._server_granted[event.ticket] = event.at
        if self.promises.server_decides:
            self._judge_grant(event)

    def _granted(self, event: Granted) -> None:
        is_excused = self._in_flight.arrived(event.ticket, event.fence)
        since = self._server_granted.pop(event.ticket, event.at)
        if not (self.promises.sees_server and self.promises.server_decides):
            self._judge_grant(event)
        if event.min_hold and not is_excused:
            self._was_tested = True
            hold_ends = since + event.min_hold * (1 - self.promises.drift) - self.promises.clock_error
            self._by_lock[event.lock][event.ticket] = (event, hold_ends)

    def _state_lost(self, event: StateLost) -> None:
        """A server that has lost its data, or an operator, ends the hold."""
        if not self.may_end_leases(event):
            return
        self._in_flight.state_lost(event)
        for name in [*self._by_lock] if event.lock is None else [event.lock]:
            self._by_lock[name].clear()

    def _judge_grant(self, event: ServerGranted | Granted) -> None:
        held = self._by_lock[event.lock]
        for ticket in [ticket for ticket, (_, hold_ends) in held.items() if event.at >= hold_ends]:
            del held[ticket]
        first = self._first.get(event.ticket, event.ticket)
        others = [hold for ticket, hold in held.items() if self._first.get(ticket, ticket) != first]
        for granted, hold_ends in others:
            if _conflict(event, granted, len(others)):
                message = (
                    f"{event.client} was granted {event.lock!r} {hold_ends - event.at:.3g} s before the end of the "
                    f"minimum hold of {granted.min_hold:g} s of {granted.client}'s lease"
                )
                self.violated(event.at, event.lock, message, granted, event)


def _conflict(event: ServerGranted | Granted, granted: Granted, held: int) -> bool:
    """Whether the tickets exclude each other. A permit is excluded by as many minimum holds of others as its limit."""
    if event.exclusive or granted.exclusive:
        return True
    return event.limit is not None and held >= event.limit
