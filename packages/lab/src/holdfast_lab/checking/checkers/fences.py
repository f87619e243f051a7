"""Do fences grow? A resource that refuses old fences depends on it."""

from __future__ import annotations

from collections import defaultdict

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking.history import Crashed, Granted, ServerGranted, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class GrowingFences(Checker):
    """Every exclusive lease has a greater fence than all leases of its lock before it, and no two have the same.

    Leases of one named owner that overlap are an exception: they share the fence of the first. After a loss of data,
    later leases of the owner may share that fence too, because that owner may hold the lock in a restored old copy.
    Shared leases may receive their fences in any order, but each is greater than the fence of every exclusive lease
    before it. Fences may start again after the server lost its state, if its guarantees make them depend on that state.
    A best-effort fence of an adopted lease is greater than the fence of the transferred lease. If the transferred lease
    is from before a loss, later leases may have smaller fences than the adopted lease.
    Unconditional fences can go back when an operator restores an old copy, but not for a running client: it gets only
    fences greater than its own earlier ones, or no lease.
    """

    name = "growing fences"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._lost_data = self._clock_went_back = self._restored = False
        self._old: dict[int, Granted] = {}  # by ticket: best-effort fences from before a loss
        self._own: dict[tuple[str, str], Granted] = {}  # by client and lock: the greatest since its last crash
        self._owners: dict[tuple[str, int], str] = {}  # named owner, by lock and fence
        self._owners_before: dict[tuple[str, int], str] = {}  # the same, from before the last loss of data
        self._in_flight = GrantsInFlight(promises)
        self.on = {**self._in_flight.on, Granted: self._granted, StateLost: self._state_lost}
        if promises.fence is FenceOrder.UNCONDITIONAL:
            self.on[Crashed] = self._crashed
        if promises.sees_server:
            self.on[ServerGranted] = self._server_granted  # passes the event on

    def _server_granted(self, event: ServerGranted) -> None:
        self._in_flight.on[ServerGranted](event)
        if event.owner:
            self._owners.setdefault((event.lock, event.fence), event.owner)

    def _granted(self, event: Granted) -> None:
        giver = None if event.adopts is None else self._old.get(event.adopts)
        if giver is not None and event.fence <= giver.fence:
            self._shrank(event, giver)
        if self._in_flight.arrived(event.ticket, event.fence) or giver is not None:
            if self.promises.fence is FenceOrder.BEST_EFFORT:
                self._old[event.ticket] = event
            return
        lock = self._locks[event.lock]
        fence = event.fence
        last = lock.greatest if event.exclusive else lock.exclusive
        if event.owner:
            if last is not None and event.owner == last.owner and fence == last.fence:
                return
            if self._owners_before.get((event.lock, fence)) == event.owner:
                return
            self._owners.setdefault((event.lock, fence), event.owner)
        own = self._own.get((event.client, event.lock)) if self._restored and event.exclusive else None
        if last is not None and fence <= last.fence:
            self._shrank(event, last)
        elif own is not None and fence <= own.fence:
            self._shrank(event, own)
        elif not event.exclusive and fence in lock.shared:
            self._shrank(event, lock.shared[fence])
        if event.exclusive:
            lock.exclusive = event
            lock.shared.clear()  # a fence that is not greater than this one is reported anyway
        else:
            lock.shared[fence] = event
        if self.promises.fence is FenceOrder.BEST_EFFORT:
            lock.granted[event.ticket] = event
        if lock.greatest is None or fence > lock.greatest.fence:
            lock.greatest = event
        if self.promises.fence is FenceOrder.UNCONDITIONAL and (own is None or fence > own.fence):
            self._own[event.client, event.lock] = event

    def _crashed(self, event: Crashed) -> None:
        for key in [key for key in self._own if key[0] == event.client]:
            del self._own[key]

    def _shrank(self, event: Granted, before: Granted) -> None:
        relation = "the same fence as" if event.fence == before.fence else "a smaller fence than"
        message = (
            f"{event.client} got fence {event.fence} of {event.lock!r}, {relation} {before.client}'s {before.fence}"
        )
        self.violated(event.at, event.lock, message, before, event)

    def _state_lost(self, event: StateLost) -> None:
        if event.kind == "data":
            self._owners_before |= self._owners
            self._owners.clear()
        self._lost_data |= event.kind == "data" and event.majority
        self._restored |= event.restored
        self._clock_went_back |= event.kind == "clock"
        depends_on = {
            FenceOrder.UNCONDITIONAL: event.restored,
            FenceOrder.DURABLE_STORAGE: event.kind == "data" and event.majority,
            FenceOrder.CLOCK_BOUNDED: self._lost_data and self._clock_went_back,
            FenceOrder.BEST_EFFORT: self._lost_data or self._clock_went_back,
        }
        if event.kind != "clock" or self.promises.fence is FenceOrder.BEST_EFFORT:
            self._in_flight.state_lost(event)  # these grants may reach their clients after later ones
        if depends_on[self.promises.fence] and event.kind != "lease":
            for name in [*self._locks] if event.lock is None else [event.lock]:
                self._old |= self._locks.pop(name, _Lock()).granted


class _Lock:
    """The leases of one lock that the next lease is compared with."""

    __slots__ = ("exclusive", "granted", "greatest", "shared")

    def __init__(self) -> None:
        self.granted: dict[int, Granted] = {}  # by ticket, if fences are best-effort
        self.greatest: Granted | None = None
        self.exclusive: Granted | None = None  # the last one
        self.shared: dict[int, Granted] = {}  # since then, by fence
