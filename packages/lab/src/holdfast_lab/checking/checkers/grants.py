"""Does one attempt yield one lease? A request that is repeated after a lost answer must not count twice."""

from __future__ import annotations

from collections import defaultdict

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking.history import Granted, Reentered, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class SingleGrants(Checker):
    """A ticket yields at most one lease, however often it is sent, and a fence belongs to one lease or owner only."""

    name = "single grants"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._granted_to: dict[int, Granted] = {}
        self._by_fence: defaultdict[str, dict[int, Granted]] = defaultdict(dict)
        self._clients: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # lock, fence -> clients that had it
        self._in_flight = GrantsInFlight(promises)
        self.on = {
            **self._in_flight.on,
            Granted: self._granted,
            Reentered: self._reentered,
            StateLost: self._state_lost,
        }

    def _granted(self, event: Granted) -> None:
        before = self._granted_to.setdefault(event.ticket, event)
        if before is not event:
            message = f"ticket {event.ticket} was granted to {event.client} a second time, with fence {event.fence}"
            self.violated(event.at, event.lock, message, before, event)
        self._clients[event.lock, event.fence].add(event.client)
        if self._in_flight.arrived(event.ticket, event.fence):
            return  # its fence is from before the server lost its state
        other = self._by_fence[event.lock].setdefault(event.fence, event)
        same_owner = event.owner != "" and event.owner == other.owner
        if other is not event and other.ticket != event.ticket and not same_owner:
            message = f"fence {event.fence} of {event.lock!r} was given to {other.client} and then to {event.client}"
            self.violated(event.at, event.lock, message, other, event)

    def _reentered(self, event: Reentered) -> None:
        if event.client not in self._clients.get((event.lock, event.fence), ()):
            message = f"{event.client} re-entered {event.lock!r} with fence {event.fence}, of which it has no lease"
            self.violated(event.at, event.lock, message, event)

    def _state_lost(self, event: StateLost) -> None:
        """A lost counter may repeat its numbers, unless the guarantee is unconditional."""
        is_promised = self.promises.fence is FenceOrder.UNCONDITIONAL and not event.restored
        if event.kind == "data" and event.majority and not is_promised:
            self._in_flight.state_lost(event)
            for name in [*self._by_fence] if event.lock is None else [event.lock]:
                self._by_fence.pop(name, None)
