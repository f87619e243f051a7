"""Is everybody kept out for a while after a loss? So long a holder that was lost may still be at work."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import Crashed, Granted, Lost, ReleaseStarted, Renewed, ServerGranted, StateLost
from holdfast.checking.promises import Promises
from holdfast.guarantees import Exclusion

from .base import Checker
from .forgetting import OnTheirWay


class NobodyInDelay(Checker):
    """After a lease with a delay was lost, nobody is let in who could not be beside it, until the delay is over.

    It counts from the end of the belief: Lost or the deadline, whichever is first; of a client that crashed, the
    deadline. A lease that was released has no delay, nor one that the server let go of by no fault of the protocol.
    """

    name = "empty delays"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._leases: dict[int, _Lease] = {}
        self._by_lock: defaultdict[str, dict[int, _Lease]] = defaultdict(dict)
        self._had_one = False
        self._on_their_way = OnTheirWay(promises)
        self.on = {
            **self._on_their_way.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._released,
            Lost: self._lost,
            Crashed: self._crashed,
            StateLost: self._forgot,
        }
        if promises.sees_server:
            self.on[ServerGranted] = self._admitted  # which passes on what it sees

    @property
    def was_tested(self) -> bool:
        return self._had_one

    def _admitted(self, event: ServerGranted) -> None:
        self._on_their_way.on[ServerGranted](event)
        if self.promises.server_decides:
            self._let_in(event)

    def _granted(self, event: Granted) -> None:
        is_excused = self._on_their_way.arrived(event.ticket, event.fence)
        if not (self.promises.sees_server and self.promises.server_decides):
            self._let_in(event)
        if event.delay and event.deadline is not None and not is_excused:
            self._had_one = True
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

    def _forgot(self, event: StateLost) -> None:
        """What was granted before is kept for nobody."""
        if event.what == "clock":
            return
        if event.what == "data" and self.promises.exclusion is Exclusion.CONSENSUS and not event.majority:
            return
        self._on_their_way.forgot(event)
        for name in [*self._by_lock] if event.lock is None else [event.lock]:
            for ticket in [*self._by_lock[name]]:
                self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        lease = self._leases.pop(ticket, None)
        if lease is not None:
            del self._by_lock[lease.granted.lock][ticket]

    def _let_in(self, event: ServerGranted | Granted) -> None:
        for ticket, lease in [*self._by_lock[event.lock].items()]:
            granted = lease.granted
            over = lease.ends + granted.delay * (1 - self.promises.drift)
            if ticket == event.ticket or not (event.exclusive or granted.exclusive):
                continue
            if event.owner and event.owner == granted.owner:
                continue
            if event.at >= over - self.promises.clock_error:
                self._drop(ticket)  # so each is looked at once
            elif event.at > lease.ends:
                what = (
                    f"{event.client} was let into {event.lock!r} {event.at - lease.ends:.3g} s after "
                    f"{granted.client}'s lease of it had ended, in its delay of {granted.delay:g} s"
                )
                self.violated(event.at, event.lock, what, granted, lease.lost, event)


class _Lease:
    """One that has a delay."""

    __slots__ = ("ends", "granted", "lost")

    def __init__(self, granted: Granted, ends: float) -> None:
        self.granted = granted
        self.ends = ends  # the belief
        self.lost: Lost | Crashed | None = None
