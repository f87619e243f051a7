"""Are leases renewed whenever they can be, and only then?"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
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
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class TrueRenewals(Checker):
    """A lease is renewed only while the server has it, and does not run out while the server can be reached.

    One renewal may have been in flight when the server removed the ticket; a second one cannot. The leases of a group
    are lost together, so a group may be lost if one of its leases may.
    """

    name = "true renewals"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: Healed | None = None
        self._leases: dict[int, Granted] = {}
        self._gone: dict[int, ServerRemoved] = {}  # tickets that the server has removed
        self._renewed_since: dict[int, Renewed] = {}
        self._has_lost_state = False
        self._was_tested = False
        self._tickets_of_group: defaultdict[int, list[int]] = defaultdict(list)
        # Groups of which one lease was lost, or may be lost at any time. The other leases of such a group are lost too,
        # although the server still has them, and their losses are recorded first.
        self._ended_groups: set[int] = set()
        self._in_flight = GrantsInFlight(promises)
        self.on = {
            **self._in_flight.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._release_started,
            Lost: self._lost,
            Healed: self._was_healed,
            StateLost: self._state_lost,
            Crashed: self._crashed,
        }
        if promises.sees_server:
            self.on |= {
                ServerRemoved: self._server_removed,
                ServerGranted: self._server_granted,  # passes the event on
            }

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _granted(self, event: Granted) -> None:
        is_lost_already = self._in_flight.arrived(event.ticket, event.fence)
        if event.group is not None:
            self._tickets_of_group[event.group].append(event.ticket)
            if is_lost_already:
                self._ended_groups.add(event.group)
        if not is_lost_already and event.renews:
            self._was_tested = True
            self._leases[event.ticket] = event

    def _server_removed(self, event: ServerRemoved) -> None:
        self._gone[event.ticket] = event

    def _server_granted(self, event: ServerGranted) -> None:
        self._in_flight.on[ServerGranted](event)
        self._gone.pop(event.ticket, None)
        self._renewed_since.pop(event.ticket, None)

    def _renewed(self, event: Renewed) -> None:
        removed = self._gone.get(event.ticket)
        if removed is None or not event.is_answered:
            return
        if event.ticket in self._renewed_since:
            message = f"{event.client}'s lease of {event.lock!r} was renewed, although the server had removed it"
            self.violated(event.at, event.lock, message, removed, self._renewed_since[event.ticket], event)
        self._renewed_since[event.ticket] = event

    def _release_started(self, event: ReleaseStarted) -> None:
        """A lease that is being released is not renewed. A request sent before the healing may arrive late."""
        if self._healed is None:
            self._leases.pop(event.ticket, None)

    def _lost(self, event: Lost) -> None:
        lease = self._leases.pop(event.ticket, None)
        if lease is None:
            return
        tickets = [event.ticket]
        if lease.group is not None:
            if lease.group in self._ended_groups:
                return
            self._ended_groups.add(lease.group)
            tickets = self._tickets_of_group[lease.group]
        if self._healed is None or self._has_lost_state or any(ticket in self._gone for ticket in tickets):
            return
        since = event.at - self._healed.at
        if since > self.promises.renew_max:
            message = f"{event.client}'s lease of {event.lock!r} ran out {since:.3g} s after the world was healed"
            self.violated(event.at, event.lock, message, lease, self._healed, event)

    def _was_healed(self, event: Healed) -> None:
        self._healed = event
        # The server's events show what it lost before the healing.
        self._has_lost_state = self._has_lost_state and not self.promises.sees_server

    def _state_lost(self, event: StateLost) -> None:
        """Leases from before the loss, and grants in flight, may end at their next renewal, however late that is."""
        self._has_lost_state = True
        if event.kind != "clock":
            self._in_flight.state_lost(event)
            for ticket, lease in list(self._leases.items()):
                if event.lock in (None, lease.lock):
                    del self._leases[ticket]
                    if lease.group is not None:
                        self._ended_groups.add(lease.group)

    def _crashed(self, event: Crashed) -> None:
        for ticket in [ticket for ticket, lease in self._leases.items() if lease.client == event.client]:
            del self._leases[ticket]
