"""Is a transferred lease adopted once, and kept for its adopter until then?"""

from __future__ import annotations

from typing import NamedTuple

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Granted,
    ReleaseEnded,
    ReleaseStarted,
    ServerGranted,
    StateLost,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class SingleAdoptions(Checker):
    """A transferred lease is adopted at most once; until then, and for the time given, no other ticket gets the lock.

    The time counts from the start of the transfer. In this time an adoption is refused only if another call has begun
    to adopt the same lease.
    """

    name = "single adoptions"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._transfers: dict[int, ReleaseStarted] = {}  # by ticket, of calls to transfer that have not returned
        self._kept: dict[str, _Kept] = {}  # by lock: the transferred lease that is not adopted yet
        self._adopts: dict[int, int] = {}  # ticket of a call to adopt -> ticket of the transferred lease
        self._begun: dict[int, int] = {}  # ticket of a transferred lease -> calls to adopt it
        self._adopted_by: dict[int, Granted | ServerGranted] = {}  # by the ticket of the transferred lease
        self._was_tested = False
        self._in_flight = GrantsInFlight(promises)
        self._sees_grants = promises.sees_server and promises.server_decides
        self.on = {
            **self._in_flight.on,
            AcquireStarted: self._acquire_started,
            AcquireFailed: self._acquire_failed,
            ReleaseStarted: self._release_started,
            ReleaseEnded: self._release_ended,
            Granted: self._granted,
            StateLost: self._state_lost,
        }
        if promises.sees_server:
            self.on[ServerGranted] = self._server_granted  # passes the event on

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _acquire_started(self, event: AcquireStarted) -> None:
        if not self.promises.sees_server:
            self._in_flight.on[AcquireStarted](event)
        if event.adopts is not None:
            self._adopts[event.ticket] = event.adopts
            self._begun[event.adopts] = self._begun.get(event.adopts, 0) + 1

    def _acquire_failed(self, event: AcquireFailed) -> None:
        self._in_flight.on[AcquireFailed](event)
        kept, adopted = self._kept.get(event.lock), self._adopts.get(event.ticket)
        if event.outcome != "gone" or kept is None or kept.transfer.ticket != adopted or event.at >= kept.until:
            return
        if self._sees_grants and self._begun[adopted] == 1:
            message = (
                f"{event.client} could not adopt the lease of {event.lock!r} that {kept.transfer.client} transferred, "
                f"{kept.until - event.at:.3g} s before the end of its time"
            )
            self.violated(event.at, event.lock, message, kept.transfer, event)

    def _release_started(self, event: ReleaseStarted) -> None:
        if event.within is not None:
            self._transfers[event.ticket] = event

    def _release_ended(self, event: ReleaseEnded) -> None:
        transfer = self._transfers.pop(event.ticket, None)
        if transfer is not None and event.outcome == "transferred":
            self._was_tested = True
            seconds = (transfer.within or 0.0) * (1 - self.promises.drift)
            self._kept[event.lock] = _Kept(transfer, transfer.at + seconds - self.promises.clock_error)

    def _server_granted(self, event: ServerGranted) -> None:
        self._in_flight.on[ServerGranted](event)
        if self._sees_grants:
            self._judge_grant(event)

    def _granted(self, event: Granted) -> None:
        if not self._in_flight.arrived(event.ticket, event.fence) and not self._sees_grants:
            self._judge_grant(event)

    def _judge_grant(self, event: Granted | ServerGranted) -> None:
        adopted, kept = self._adopts.get(event.ticket), self._kept.get(event.lock)
        if adopted is not None:
            first = self._adopted_by.setdefault(adopted, event)
            if first.ticket != event.ticket:
                message = f"{event.client} adopted the lease of {event.lock!r} that {first.client} had adopted"
                self.violated(event.at, event.lock, message, first, event)
        if kept is None:
            return
        if adopted != kept.transfer.ticket and event.at < kept.until:
            message = (
                f"{event.client} was granted {event.lock!r} {kept.until - event.at:.3g} s before the end of the time "
                f"for which {kept.transfer.client} transferred it"
            )
            self.violated(event.at, event.lock, message, kept.transfer, event)
        del self._kept[event.lock]

    def _state_lost(self, event: StateLost) -> None:
        """The ticket may be lost; in an old copy of the data, it may not be adopted yet."""
        if not self.may_end_leases(event):
            return
        self._in_flight.state_lost(event)
        for transfer in [*self._transfers.values()]:
            if event.lock in (None, transfer.lock):
                del self._transfers[transfer.ticket]
        for name in [*self._kept] if event.lock is None else [event.lock]:
            self._kept.pop(name, None)
        if event.kind == "data":
            self._adopted_by.clear()


class _Kept(NamedTuple):
    """A lease that waits to be adopted."""

    transfer: ReleaseStarted
    until: float
