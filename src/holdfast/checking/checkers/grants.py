"""Does one attempt yield one lease? Requests are sent again when an answer is lost, and must not count twice."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import Granted, Reentered, StateLost
from holdfast.checking.promises import Promises
from holdfast.guarantees import FenceOrder

from .base import Checker
from .forgetting import OnTheirWay


class SingleGrants(Checker):
    """A ticket yields one lease at most, however often it was sent, and a fence belongs to one lease or owner only."""

    name = "single grants"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._granted_to: dict[int, Granted] = {}
        self._by_fence: defaultdict[str, dict[int, Granted]] = defaultdict(dict)
        self._clients: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # lock, fence: who ever had it
        self._on_their_way = OnTheirWay(promises)
        self.on = {
            **self._on_their_way.on,
            Granted: self._granted,
            Reentered: self._reentered,
            StateLost: self._forgot,
        }

    def _granted(self, event: Granted) -> None:
        before = self._granted_to.setdefault(event.ticket, event)
        if before is not event:
            what = f"ticket {event.ticket} was granted to {event.client} a second time, with fence {event.fence}"
            self.violated(event.at, event.lock, what, before, event)
        self._clients[event.lock, event.fence].add(event.client)
        if self._on_their_way.arrived(event.ticket, event.fence):
            return  # its fence is from before the server forgot
        other = self._by_fence[event.lock].setdefault(event.fence, event)
        is_kin = event.owner != "" and event.owner == other.owner
        if other is not event and other.ticket != event.ticket and not is_kin:
            what = f"fence {event.fence} of {event.lock!r} was given to {other.client} and then to {event.client}"
            self.violated(event.at, event.lock, what, other, event)

    def _reentered(self, event: Reentered) -> None:
        if event.client not in self._clients.get((event.lock, event.fence), ()):
            what = f"{event.client} re-entered {event.lock!r} with fence {event.fence}, of which it has no lease"
            self.violated(event.at, event.lock, what, event)

    def _forgot(self, event: StateLost) -> None:
        """A counter that is gone may give its numbers again, if nothing better was promised."""
        is_promised = self.promises.fence is FenceOrder.UNCONDITIONAL and not event.restored
        if event.what == "data" and event.majority and not is_promised:
            self._on_their_way.forgot(event)
            for name in [*self._by_fence] if event.lock is None else [event.lock]:
                self._by_fence.pop(name, None)
