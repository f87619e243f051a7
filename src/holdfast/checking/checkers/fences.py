"""Do fences grow? The resource that refuses old ones relies on nothing else."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import Crashed, Granted, ServerGranted, StateLost
from holdfast.checking.promises import Promises
from holdfast.guarantees import FenceOrder

from .base import Checker
from .forgetting import OnTheirWay


class GrowingFences(Checker):
    """Every exclusive lease has a greater fence than all leases of its lock before it, and no two have the same.

    But for those of one named owner, which is in with all of them at once: they have the fence of the first. If an old
    copy of the data is back in which that one is in, so may those that come to it then, whoever came between.
    Shared leases may learn of their fences in any order, but theirs too are greater than that of any exclusive lease
    before them. What the server forgot starts anew where its guarantees say that fences depend on it.
    Where they depend on nothing, an old copy that an operator restores can make them go back, but not for a client that
    runs: it gets no fence that is not greater than its own before, or none at all.
    """

    name = "growing fences"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._lost_data = self._clock_went_back = self._restored = False
        self._own: dict[tuple[str, str], Granted] = {}  # by client and lock: its greatest, since it last crashed
        self._owners: dict[tuple[str, int], str] = {}  # of tickets that have one, by lock and fence
        self._owners_before: dict[tuple[str, int], str] = {}  # of those before the server went back to an old copy
        self._on_their_way = OnTheirWay(promises)
        self.on = {**self._on_their_way.on, Granted: self._granted, StateLost: self._forgot}
        if promises.fence is FenceOrder.UNCONDITIONAL:
            self.on[Crashed] = self._crashed
        if promises.sees_server:
            self.on[ServerGranted] = self._admitted  # which passes on what it sees

    def _admitted(self, event: ServerGranted) -> None:
        self._on_their_way.on[ServerGranted](event)
        if event.owner:
            self._owners.setdefault((event.lock, event.fence), event.owner)

    def _granted(self, event: Granted) -> None:
        if self._on_their_way.arrived(event.ticket, event.fence):
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
            lock.shared.clear()  # what is not greater than this one is reported anyway
        else:
            lock.shared[fence] = event
        if lock.greatest is None or fence > lock.greatest.fence:
            lock.greatest = event
        if self.promises.fence is FenceOrder.UNCONDITIONAL and (own is None or fence > own.fence):
            self._own[event.client, event.lock] = event

    def _crashed(self, event: Crashed) -> None:
        for key in [key for key in self._own if key[0] == event.client]:
            del self._own[key]

    def _shrank(self, event: Granted, before: Granted) -> None:
        relation = "the same fence as" if event.fence == before.fence else "a smaller fence than"
        what = f"{event.client} got fence {event.fence} of {event.lock!r}, {relation} {before.client}'s {before.fence}"
        self.violated(event.at, event.lock, what, before, event)

    def _forgot(self, event: StateLost) -> None:
        if event.what == "data":
            self._owners_before |= self._owners
            self._owners.clear()
        self._lost_data |= event.what == "data" and event.majority
        self._restored |= event.restored
        self._clock_went_back |= event.what == "clock"
        depends_on = {
            FenceOrder.UNCONDITIONAL: event.restored,
            FenceOrder.DURABLE_STORAGE: event.what == "data" and event.majority,
            FenceOrder.CLOCK_BOUNDED: self._lost_data and self._clock_went_back,
            FenceOrder.BEST_EFFORT: self._lost_data or self._clock_went_back,
        }
        if event.what != "clock" or self.promises.fence is FenceOrder.BEST_EFFORT:
            self._on_their_way.forgot(event)  # these may reach their clients after younger ones
        if depends_on[self.promises.fence] and event.what != "lease":
            for name in [*self._locks] if event.lock is None else [event.lock]:
                self._locks.pop(name, None)


class _Lock:
    """The leases of one lock that the next one is compared with."""

    __slots__ = ("exclusive", "greatest", "shared")

    def __init__(self) -> None:
        self.greatest: Granted | None = None
        self.exclusive: Granted | None = None  # the last one
        self.shared: dict[int, Granted] = {}  # since then, by fence
