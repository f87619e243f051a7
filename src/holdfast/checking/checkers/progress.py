"""Once nothing is wrong any more, does everything go on?"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from holdfast.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Granted,
    Healed,
    Lost,
    MemberGranted,
    Paused,
    Reentered,
    ReleaseStarted,
    Resumed,
    ServerRemoved,
)
from holdfast.checking.promises import Promises

from .base import Checker

_Ends: TypeAlias = (
    ReleaseStarted | Lost | Crashed | MemberGranted | AcquireFailed | Reentered | ServerRemoved
)  # what may leave a lock idle


class SteadyProgress(Checker):
    """In a healed world every call comes to its end in time, none finds the server gone, and no lock stands idle.

    Idle is a lock that nobody believes to hold while somebody waits for it. A call for several locks waits for one
    after the other, and keeps what it has gathered. Nothing is judged before HealedForGood.
    """

    name = "steady progress"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._waiting: dict[int, AcquireStarted] = {}
        self._believed: dict[int, str] = {}  # ticket: lock
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # who asked since the client last crashed
        self._paused: set[str] = set()
        self._bundles: defaultdict[int, list[AcquireStarted]] = defaultdict(list)
        self._not_yet: set[int] = set()  # tickets of a bundle that are not what it waits for now
        self._gathered_by: dict[int, int] = {}  # ticket: bundle, of what is kept for a call that goes on
        self.on = {
            AcquireStarted: self._asked,
            MemberGranted: self._gathered,
            ServerRemoved: self._left,
            Granted: self._granted,
            Reentered: self._ended,
            AcquireFailed: self._ended,
            ReleaseStarted: self._let_go,
            Lost: self._let_go,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            Healed: self._was_healed,
        }

    def _asked(self, event: AcquireStarted) -> None:
        self._waiting[event.ticket] = event
        self._of_client[event.client].append(event.ticket)
        if event.group is not None:
            self._bundles[event.group].append(event)
            if len(self._bundles[event.group]) > 1:
                self._not_yet.add(event.ticket)
                return
        self._begin_waiting(event.lock, event)

    def _begin_waiting(self, name: str, event: AcquireStarted | MemberGranted) -> None:
        lock = self._locks[name]
        lock.waiting += 1
        if lock.idle_since is None and not lock.believed:
            lock.idle_since = event

    def _stop_waiting(self, ticket: int, lock: _Lock) -> None:
        if ticket in self._not_yet:
            self._not_yet.discard(ticket)
        else:
            lock.waiting -= 1

    def _gathered(self, event: MemberGranted) -> None:
        """It is kept, and the next is waited for; whatever was kept beyond that, in an earlier attempt, is not."""
        asked = self._waiting.get(event.ticket)
        if asked is None or asked.group is None:
            return
        group = self._bundles[asked.group]
        place = next(number for number, one in enumerate(group) if one.ticket == event.ticket)
        lock = self._locks[event.lock]
        if self._healed is not None and event.ticket not in self._not_yet:
            self._judge_idle(lock, event.lock, event.at, event)
        for one in group[place:]:
            self._give_up_waiting(one, event)
        lock.idle_since = None
        lock.believed += 1
        self._believed[event.ticket] = event.lock
        self._gathered_by[event.ticket] = asked.group
        if place + 1 < len(group):
            self._not_yet.discard(group[place + 1].ticket)
            self._begin_waiting(group[place + 1].lock, event)

    def _give_up_waiting(self, one: AcquireStarted, event: MemberGranted | ServerRemoved) -> None:
        """This one of a bundle is neither kept nor waited for now."""
        if self._gathered_by.pop(one.ticket, None) is not None:
            self._end_belief(one.ticket, event)
        elif one.ticket not in self._not_yet:
            lock = self._locks[one.lock]
            lock.waiting -= 1
            if not lock.waiting:
                lock.idle_since = None
        self._not_yet.add(one.ticket)

    def _left(self, event: ServerRemoved) -> None:
        """What was kept is gone: the call begins again as soon as it notices. What it waits for now, nobody knows."""
        group = self._gathered_by.get(event.ticket)
        if group is not None:
            for one in self._bundles[group]:
                if one.ticket in self._waiting:
                    self._give_up_waiting(one, event)

    def _granted(self, event: Granted) -> None:
        asked = self._waiting.pop(event.ticket, None)
        lock = self._locks.get(event.lock)
        if asked is None or lock is None:
            return
        self._stop_waiting(event.ticket, lock)
        if self._gathered_by.pop(event.ticket, None) is None:
            lock.believed += 1
        self._believed[event.ticket] = event.lock
        if self._healed is not None:
            self._judge_wait(asked, event.at, event)
            self._judge_idle(lock, event.lock, event.at, event)
        lock.idle_since = None

    def _ended(self, event: AcquireFailed | Reentered) -> None:
        asked = self._waiting.pop(event.ticket, None)
        if asked is None:
            return
        lock = self._locks[event.lock]
        self._stop_waiting(event.ticket, lock)
        if self._healed is not None:
            self._judge_wait(asked, event.at, event)
            if isinstance(event, AcquireFailed):
                self._judge_reach(asked, event)
        if self._gathered_by.pop(event.ticket, None) is not None:
            self._end_belief(event.ticket, event)
        elif not lock.waiting:
            if self._healed is not None:
                self._judge_idle(lock, event.lock, event.at, event)
            lock.idle_since = None

    def _let_go(self, event: ReleaseStarted | Lost) -> None:
        self._end_belief(event.ticket, event)

    def _end_belief(self, ticket: int, event: _Ends) -> None:
        name = self._believed.pop(ticket, None)
        if name is None:
            return
        lock = self._locks[name]
        lock.believed -= 1
        if lock.waiting and not lock.believed:
            lock.idle_since = event

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for ticket in self._of_client.pop(event.client, ()):
            asked = self._waiting.pop(ticket, None)
            if asked is not None:
                lock = self._locks[asked.lock]
                self._stop_waiting(ticket, lock)
                if not lock.waiting:
                    lock.idle_since = None
            if asked is None or self._gathered_by.pop(ticket, None) is not None:
                self._end_belief(ticket, event)

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    @property
    def was_tested(self) -> bool:
        return self._healed is not None

    def finish(self, at: float) -> None:
        if self._healed is None:
            return
        for asked in self._waiting.values():
            if asked.client not in self._paused:
                self._judge_wait(asked, at, None)
        for name, lock in self._locks.items():
            self._judge_idle(lock, name, at, None)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge_wait(
        self, asked: AcquireStarted, at: float, outcome: Granted | AcquireFailed | Reentered | None
    ) -> None:
        since = max(asked.at, self._healed or 0.0)
        if at - since > self.promises.wait_max:
            healed = ", all in a healed world" if since == asked.at else " since the world was healed"
            still = "" if outcome else " and still does"
            what = f"{asked.client} waited {at - since:.3g} s for {asked.lock!r}{still}{healed}"
            self.violated(at, asked.lock, what, asked, outcome)

    def _judge_idle(
        self, lock: _Lock, name: str, at: float, event: Granted | MemberGranted | AcquireFailed | Reentered | None
    ) -> None:
        start = lock.idle_since
        if start is None:
            return
        idle = at - max(start.at, self._healed or 0.0)
        if idle > self.promises.idle_max:
            what = f"nobody held {name!r} for {idle:.3g} s although somebody waited for it"
            self.violated(at, name, what, start, event)

    def _judge_reach(self, asked: AcquireStarted, event: AcquireFailed) -> None:
        if event.outcome in ("unavailable", "unknown") and asked.at - (self._healed or 0.0) > self.promises.settle_max:
            what = f"{event.client} found the server of {event.lock!r} {event.outcome} in a healed world"
            self.violated(event.at, event.lock, what, asked, event)


class _Lock:
    """How many wait for one lock and believe to hold it, and what left it idle."""

    __slots__ = ("believed", "idle_since", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.believed = 0
        self.idle_since: AcquireStarted | _Ends | None = None
