"""Is a lock with a `lock_delay` kept free after a loss? During the delay the former holder may still be working."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import Crashed, Granted, Lost, ReleaseStarted, Renewed, ServerGranted, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class LockDelays(Checker):
    """After a lease with a delay was lost, no conflicting ticket is granted until the delay is over.

    The delay starts at the end of the belief: at Lost or the deadline, whichever is first; for a crashed client, at the
    deadline. A released lease has no delay, nor has a lease that the server lost without a fault of the protocol.
    """

    name = "lock delays"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._leases: dict[int, _Lease] = {}
        self._by_lock: defaultdict[str, dict[int, _Lease]] = defaultdict(dict)
        self._was_tested = False
        self._in_flight = GrantsInFlight(promises)
        self.on = {
            **self._in_flight.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._released,
            Lost: self._lost,
            Crashed: self._crashed,
            StateLost: self._state_lost,
        }
        if promises.sees_server:
            self.on[ServerGranted] = self._server_granted  # passes the event on

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _server_granted(self, event: ServerGranted) -> None:
        self._in_flight.on[ServerGranted](event)
        if self.promises.server_decides:
            self._judge_grant(event)

    def _granted(self, event: Granted) -> None:
        is_excused = self._in_flight.arrived(event.ticket, event.fence)
        if not (self.promises.sees_server and self.promises.server_decides):
            self._judge_grant(event)
        if event.delay and event.deadline is not None and not is_excused:
            self._was_tested = True
            self._leases[event.ticket] = self._by_lock[event.lock][event.ticket] = _Lease(event, event.deadline)

    def _renewed(self, event: Renewed) -> None:
        lease = self._leases.get(event.ticket)
        if lease is not None and lease.lost is None:
            lease.ends = event.deadline

    def _lost(self, event: Lost) -> None:
        lease = self._leases.get(event.ticket)
        if lease is not None and lease.lost is None:
            lease.lost = event
            lease.ends = min(lease.ends, event.at)

    def _crashed(self, event: Crashed) -> None:
        for lease in self._leases.values():
            if lease.granted.client == event.client and lease.lost is None:
                lease.lost = event

    def _released(self, event: ReleaseStarted) -> None:
        self._drop(event.ticket)

    def _state_lost(self, event: StateLost) -> None:
        """Leases from before the loss have no delay."""
        if not self.may_end_leases(event):
            return
        self._in_flight.state_lost(event)
        for name in [*self._by_lock] if event.lock is None else [event.lock]:
            for ticket in [*self._by_lock[name]]:
                self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        lease = self._leases.pop(ticket, None)
        if lease is not None:
            del self._by_lock[lease.granted.lock][ticket]

    def _judge_grant(self, event: ServerGranted | Granted) -> None:
        for ticket, lease in [*self._by_lock[event.lock].items()]:
            granted = lease.granted
            delay_ends = lease.ends + granted.delay * (1 - self.promises.drift)
            if ticket == event.ticket or not (event.exclusive or granted.exclusive):
                continue
            if event.owner and event.owner == granted.owner:
                continue
            if event.at >= delay_ends - self.promises.clock_error:
                self._drop(ticket)  # so that each lease is checked once
            elif event.at > lease.ends:
                message = (
                    f"{event.client} was granted {event.lock!r} {event.at - lease.ends:.3g} s after "
                    f"{granted.client}'s lease of it had ended, in its delay of {granted.delay:g} s"
                )
                self.violated(event.at, event.lock, message, granted, lease.lost, event)


class _Lease:
    """A lease with a delay."""

    __slots__ = ("ends", "granted", "lost")

    def __init__(self, granted: Granted, ends: float) -> None:
        self.granted = granted
        self.ends = ends  # the belief
        self.lost: Lost | Crashed | None = None
