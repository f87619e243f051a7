"""Do two beliefs overlap that must not? The one promise that a lock is for."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import Crashed, Granted, Lost, ReleaseStarted, Renewed, StateLost
from holdfast.checking.promises import Promises
from holdfast.guarantees import Exclusion

from .base import Checker
from .forgetting import OnTheirWay


class MutualExclusion(Checker):
    """At no time do more clients believe that they hold a lock than its rule allows.

    A belief is [granted, ended): one that ends at the moment when another begins does not overlap it. It ends with
    Released, Lost, the client's crash, or its deadline. Exclusive is alone, but for leases of the same named owner,
    which all have one fence; of leases with limits, taken in the best order, none has as many others before it as its
    limit.
    """

    name = "mutual exclusion"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._believed: dict[int, Granted] = {}
        self._moved: dict[int, float] = {}  # deadlines that were renewed
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # what each was granted since it last crashed
        self._slack = promises.clock_error
        self._on_their_way = OnTheirWay(promises)
        self.on = {
            **self._on_their_way.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._ended,
            Lost: self._ended,
            Crashed: self._crashed,
            StateLost: self._forgot,
        }

    def _granted(self, event: Granted) -> None:
        ticket = event.ticket
        if self._on_their_way.arrived(ticket, event.fence):
            return
        if ticket in self._believed:
            self._drop(ticket)  # granted twice: for another checker
        lock = self._locks[event.lock]
        if event.exclusive:
            if lock.alone or lock.shared:
                self._look_closer(lock, event)
            lock.alone[ticket] = event
        else:
            if lock.alone or lock.too_many_with(event.limit):
                self._look_closer(lock, event)
            lock.shared[ticket] = event
            lock.count(event.limit, 1)
        self._believed[ticket] = event
        self._of_client[event.client].append(ticket)

    def _renewed(self, event: Renewed) -> None:
        """What is over stays over; a client that thinks otherwise is found by the checker of losses."""
        granted = self._believed.get(event.ticket)
        if granted is not None:
            deadline = self._moved.get(event.ticket, granted.deadline)
            if deadline is None or event.at < deadline + self._slack:
                self._moved[event.ticket] = event.deadline

    def _ended(self, event: ReleaseStarted | Lost) -> None:
        self._drop(event.ticket)

    def _crashed(self, event: Crashed) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            self._drop(ticket)

    def _forgot(self, event: StateLost) -> None:
        """What was granted before is not protected from what is granted after; the rest still is."""
        if event.what == "clock":
            return
        if event.what == "data" and self.promises.exclusion is Exclusion.CONSENSUS and not event.majority:
            return
        self._on_their_way.forgot(event)
        locks = self._locks if event.lock is None else [event.lock]
        for lock in [self._locks[name] for name in locks if name in self._locks]:
            for ticket in [*lock.alone, *lock.shared]:
                self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        granted = self._believed.pop(ticket, None)
        if granted is None:
            return
        lock = self._locks[granted.lock]
        if granted.exclusive:
            lock.alone.pop(ticket, None)
        elif lock.shared.pop(ticket, None) is not None:
            lock.count(granted.limit, -1)
        if self._moved:
            self._moved.pop(ticket, None)

    def _look_closer(self, lock: _Lock, event: Granted) -> None:
        """Somebody may be in the way, unless by its own clock it is out."""
        now = event.at
        for others in (lock.alone, lock.shared):
            for ticket, other in list(others.items()):
                deadline = self._moved.get(ticket, other.deadline)
                if deadline is not None and deadline - self._slack <= now:
                    self._drop(ticket)  # so each is looked at once
        in_the_way = next((other for other in lock.alone.values() if not _is_kin(other, event)), None)
        if in_the_way is None and (event.exclusive or lock.too_many_with(event.limit)):
            in_the_way = next(iter(lock.shared.values()), None)
        if in_the_way is None:
            return
        if event.owner and in_the_way.owner == event.owner:
            what = (
                f"{event.client} was granted {event.lock!r} beside {in_the_way.client} of the same owner, "
                f"with fence {event.fence} and not with {in_the_way.fence}"
            )
        elif event.exclusive or in_the_way.exclusive:
            what = f"{event.client} was granted {event.lock!r} while {in_the_way.client} believed to hold it"
        else:
            there, limit = len(lock.shared) + 1, min(lock.limits | {event.limit: 1}, key=_finite)
            what = f"{event.client} was granted {event.lock!r} as number {there}, where the limit is {limit}"
        self.violated(now, event.lock, what, in_the_way, event)


def _is_kin(one: Granted, other: Granted) -> bool:
    return one.owner != "" and one.owner == other.owner and one.fence == other.fence


class _Lock:
    """Who believes to hold one lock."""

    __slots__ = ("alone", "limits", "shared")

    def __init__(self) -> None:
        self.alone: dict[int, Granted] = {}
        self.shared: dict[int, Granted] = {}
        self.limits: dict[int | None, int] = {}  # of the shared ones: how many have this limit

    def count(self, limit: int | None, change: int) -> None:
        if limit is None:
            return
        now = self.limits.get(limit, 0) + change
        if now:
            self.limits[limit] = now
        else:
            del self.limits[limit]

    def too_many_with(self, limit: int | None) -> bool:
        """One more with this limit would be too many: in no order has each fewer before it than its limit.

        The best order is by limit, so as many as have a limit up to n must fit into n; those without one come last.
        """
        there = 0
        limits = self.limits
        if not limits:
            return limit is not None and limit < 1
        if len(limits) == 1 and limit in limits:
            return limits[limit] >= (limit or 0)
        added = limits if limit is None else limits | {limit: limits.get(limit, 0) + 1}
        for upper in sorted(added, key=_finite):
            there += added[upper]
            if there > _finite(upper):
                return True
        return False


def _finite(limit: int | None) -> float:
    return float("inf") if limit is None else limit
