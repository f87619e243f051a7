"""Are leases renewed when they can be, and only then?"""

from __future__ import annotations

from holdfast.checking.history import (
    Crashed,
    Granted,
    Healed,
    Lost,
    ReleaseStarted,
    Renewed,
    ServerGranted,
    ServerRemoved,
    StateLost,
)
from holdfast.checking.promises import Promises

from .base import Checker
from .forgetting import OnTheirWay


class TrueRenewals(Checker):
    """A lease is renewed only while the server has it, and does not run out while the server can be reached.

    One renewal may have been on its way when the server let go of the ticket; a second cannot have been.
    """

    name = "true renewals"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: Healed | None = None
        self._leases: dict[int, Granted] = {}
        self._gone: dict[int, ServerRemoved] = {}  # tickets that the server has let go of
        self._renewed_since: dict[int, Renewed] = {}
        self._forgot = False
        self._had_one = False
        self._lost_bundles: set[int] = (
            set()
        )  # the others of a bundle are lost with the first, though the server has them
        self._on_their_way = OnTheirWay(promises)
        self.on = {
            **self._on_their_way.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._release_began,
            Lost: self._lost,
            Healed: self._was_healed,
            StateLost: self._has_forgotten,
            Crashed: self._crashed,
        }
        if promises.sees_server:
            self.on |= {ServerRemoved: self._left, ServerGranted: self._admitted}  # which passes on what it sees

    @property
    def was_tested(self) -> bool:
        return self._had_one

    def _granted(self, event: Granted) -> None:
        if not self._on_their_way.arrived(event.ticket, event.fence) and event.renews:
            self._had_one = True
            self._leases[event.ticket] = event

    def _left(self, event: ServerRemoved) -> None:
        self._gone[event.ticket] = event

    def _admitted(self, event: ServerGranted) -> None:
        self._on_their_way.on[ServerGranted](event)
        self._gone.pop(event.ticket, None)
        self._renewed_since.pop(event.ticket, None)

    def _renewed(self, event: Renewed) -> None:
        left = self._gone.get(event.ticket)
        if left is None:
            return
        if event.ticket in self._renewed_since:
            what = f"{event.client}'s lease of {event.lock!r} was renewed, although the server had let go of it"
            self.violated(event.at, event.lock, what, left, self._renewed_since[event.ticket], event)
        self._renewed_since[event.ticket] = event

    def _release_began(self, event: ReleaseStarted) -> None:
        """A lease that is being released is not renewed. What was sent before the world was healed may arrive late."""
        if self._healed is None:
            self._leases.pop(event.ticket, None)

    def _lost(self, event: Lost) -> None:
        lease = self._leases.pop(event.ticket, None)
        if lease is None:
            return
        if lease.group is not None:
            if lease.group in self._lost_bundles:
                return
            self._lost_bundles.add(lease.group)
        if self._healed is None or event.ticket in self._gone or self._forgot:
            return
        since = event.at - self._healed.at
        if since > self.promises.renew_max:
            what = f"{event.client}'s lease of {event.lock!r} ran out {since:.3g} s after the world was healed"
            self.violated(event.at, event.lock, what, lease, self._healed, event)

    def _was_healed(self, event: Healed) -> None:
        self._healed = event
        self._forgot = self._forgot and not self.promises.sees_server  # the server itself tells what it has not

    def _has_forgotten(self, event: StateLost) -> None:
        """Leases from before, and those on their way, may end by it: at the next look, however late that is."""
        self._forgot = True
        if event.what != "clock":
            self._on_their_way.forgot(event)
            for ticket, lease in list(self._leases.items()):
                if event.lock in (None, lease.lock):
                    del self._leases[ticket]

    def _crashed(self, event: Crashed) -> None:
        for ticket in [ticket for ticket, lease in self._leases.items() if lease.client == event.client]:
            del self._leases[ticket]
