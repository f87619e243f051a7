"""Do two beliefs overlap that must not? This is the main promise of a lock."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import Crashed, Granted, Lost, ReleaseStarted, Renewed, StateLost
from holdfast_lab.checking.promises import Promises

from .base import Checker
from .in_flight import GrantsInFlight


class MutualExclusion(Checker):
    """At no time do more clients believe that they hold a lock than its rule allows.

    A belief is [granted, ended): a belief that ends when another begins does not overlap it. It ends with
    ReleaseStarted, Lost, the client's crash, or its deadline. An exclusive lease overlaps only leases of the same named
    owner with the same fence. Leases with limits, in the best order, each have fewer others before them than their
    limit.
    """

    name = "mutual exclusion"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._believed: dict[int, Granted] = {}
        self._deadlines: dict[int, float] = {}  # renewed deadlines, by ticket
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # tickets granted since its last crash
        self._slack = promises.clock_error
        self._in_flight = GrantsInFlight(promises)
        self.on = {
            **self._in_flight.on,
            Granted: self._granted,
            Renewed: self._renewed,
            ReleaseStarted: self._ended,
            Lost: self._ended,
            Crashed: self._crashed,
            StateLost: self._state_lost,
        }

    def _granted(self, event: Granted) -> None:
        ticket = event.ticket
        if self._in_flight.arrived(ticket, event.fence):
            return
        if ticket in self._believed:
            self._drop(ticket)  # granted twice: another checker reports that
        lock = self._locks[event.lock]
        if event.exclusive:
            if lock.exclusive or lock.shared:
                self._judge_conflicts(lock, event)
            lock.exclusive[ticket] = event
        else:
            if lock.exclusive or lock.too_many_with(event.limit):
                self._judge_conflicts(lock, event)
            lock.shared[ticket] = event
            lock.count(event.limit, 1)
        self._believed[ticket] = event
        self._of_client[event.client].append(ticket)

    def _renewed(self, event: Renewed) -> None:
        """An expired lease is not revived; the checker of losses reports a client that does so."""
        granted = self._believed.get(event.ticket)
        if granted is not None:
            deadline = self._deadlines.get(event.ticket, granted.deadline)
            if deadline is None or event.at < deadline + self._slack:
                self._deadlines[event.ticket] = event.deadline

    def _ended(self, event: ReleaseStarted | Lost) -> None:
        self._drop(event.ticket)

    def _crashed(self, event: Crashed) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            self._drop(ticket)

    def _state_lost(self, event: StateLost) -> None:
        """Leases from before the loss are not protected from later grants; all others still are."""
        if not self.may_end_leases(event):
            return
        self._in_flight.state_lost(event)
        locks = self._locks if event.lock is None else [event.lock]
        for lock in [self._locks[name] for name in locks if name in self._locks]:
            for ticket in [*lock.exclusive, *lock.shared]:
                self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        granted = self._believed.pop(ticket, None)
        if granted is None:
            return
        lock = self._locks[granted.lock]
        if granted.exclusive:
            lock.exclusive.pop(ticket, None)
        elif lock.shared.pop(ticket, None) is not None:
            lock.count(granted.limit, -1)
        if self._deadlines:
            self._deadlines.pop(ticket, None)

    def _judge_conflicts(self, lock: _Lock, event: Granted) -> None:
        """Report a conflicting lease, if its deadline on its own clock has not passed."""
        now = event.at
        for others in (lock.exclusive, lock.shared):
            for ticket, other in list(others.items()):
                deadline = self._deadlines.get(ticket, other.deadline)
                if deadline is not None and deadline - self._slack <= now:
                    self._drop(ticket)  # so that each lease is checked once
        blocker = next((other for other in lock.exclusive.values() if not _same_owner(other, event)), None)
        if blocker is None and (event.exclusive or lock.too_many_with(event.limit)):
            blocker = next(iter(lock.shared.values()), None)
        if blocker is None:
            return
        if event.owner and blocker.owner == event.owner:
            message = (
                f"{event.client} was granted {event.lock!r} beside {blocker.client} of the same owner, "
                f"with fence {event.fence} and not with {blocker.fence}"
            )
        elif event.exclusive or blocker.exclusive:
            message = f"{event.client} was granted {event.lock!r} while {blocker.client} believed to hold it"
        else:
            count, limit = len(lock.shared) + 1, min(lock.limits | {event.limit: 1}, key=_finite)
            message = f"{event.client} was granted {event.lock!r} as number {count}, where the limit is {limit}"
        self.violated(now, event.lock, message, blocker, event)


def _same_owner(first: Granted, second: Granted) -> bool:
    return first.owner != "" and first.owner == second.owner and first.fence == second.fence


class _Lock:
    """The clients that believe to hold one lock."""

    __slots__ = ("exclusive", "limits", "shared")

    def __init__(self) -> None:
        self.exclusive: dict[int, Granted] = {}
        self.shared: dict[int, Granted] = {}
        self.limits: dict[int | None, int] = {}  # of shared leases: how many have this limit

    def count(self, limit: int | None, change: int) -> None:
        if limit is None:
            return
        now = self.limits.get(limit, 0) + change
        if now:
            self.limits[limit] = now
        else:
            del self.limits[limit]

    def too_many_with(self, limit: int | None) -> bool:
        """Whether another lease with this limit is too many: no order gives each fewer leases before it than its limit.

        The best order is by limit, so at most n leases may have a limit up to n. Leases without a limit come last.
        """
        count = 0
        limits = self.limits
        if not limits:
            return limit is not None and limit < 1
        if len(limits) == 1 and limit in limits:
            return limits[limit] >= (limit or 0)
        added = limits if limit is None else limits | {limit: limits.get(limit, 0) + 1}
        for upper in sorted(added, key=_finite):
            count += added[upper]
            if count > _finite(upper):
                return True
        return False


def _finite(limit: int | None) -> float:
    return float("inf") if limit is None else limit
