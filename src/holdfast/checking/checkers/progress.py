"""Once nothing is wrong any more, does everything go on?"""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import (
    Asked,
    Crashed,
    GaveUp,
    Granted,
    HealedForGood,
    Lost,
    Paused,
    Reentered,
    Released,
    Resumed,
)
from holdfast.checking.promises import Promises

from .base import Checker


class SteadyProgress(Checker):
    """In a healed world every call comes to its end in time, none finds the server gone, and no lock stands idle.

    Idle is a lock that nobody believes to hold while somebody waits for it. Nothing is judged before HealedForGood.
    """

    name = "steady progress"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._waiting: dict[int, Asked] = {}
        self._believed: dict[int, str] = {}  # ticket: lock
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # who asked since the client last crashed
        self._paused: set[str] = set()
        self.on = {
            Asked: self._asked,
            Granted: self._granted,
            Reentered: self._ended,
            GaveUp: self._ended,
            Released: self._let_go,
            Lost: self._let_go,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            HealedForGood: self._was_healed,
        }

    def _asked(self, event: Asked) -> None:
        self._waiting[event.ticket] = event
        lock = self._locks[event.lock]
        lock.waiting += 1
        if lock.idle_since is None and not lock.believed:
            lock.idle_since = event
        self._of_client[event.client].append(event.ticket)

    def _granted(self, event: Granted) -> None:
        asked = self._waiting.pop(event.ticket, None)
        lock = self._locks.get(event.lock)
        if asked is None or lock is None:
            return
        lock.waiting -= 1
        lock.believed += 1
        self._believed[event.ticket] = event.lock
        if self._healed is not None:
            self._judge_wait(asked, event.at, event)
            self._judge_idle(lock, event.lock, event.at, event)
        lock.idle_since = None

    def _ended(self, event: GaveUp | Reentered) -> None:
        asked = self._waiting.pop(event.ticket, None)
        if asked is None:
            return
        lock = self._locks[event.lock]
        lock.waiting -= 1
        if self._healed is not None:
            self._judge_wait(asked, event.at, event)
            if isinstance(event, GaveUp):
                self._judge_reach(asked, event)
        if not lock.waiting:
            if self._healed is not None:
                self._judge_idle(lock, event.lock, event.at, event)
            lock.idle_since = None

    def _let_go(self, event: Released | Lost) -> None:
        self._end_belief(event.ticket, event)

    def _end_belief(self, ticket: int, event: Released | Lost | Crashed) -> None:
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
                lock.waiting -= 1
                if not lock.waiting:
                    lock.idle_since = None
            else:
                self._end_belief(ticket, event)

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)

    def _was_healed(self, event: HealedForGood) -> None:
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

    def _judge_wait(self, asked: Asked, at: float, outcome: Granted | GaveUp | Reentered | None) -> None:
        since = max(asked.at, self._healed or 0.0)
        if at - since > self.promises.wait_max:
            healed = ", all in a healed world" if since == asked.at else " since the world was healed"
            still = "" if outcome else " and still does"
            what = f"{asked.client} waited {at - since:.3g} s for {asked.lock!r}{still}{healed}"
            self.violated(at, asked.lock, what, asked, outcome)

    def _judge_idle(self, lock: _Lock, name: str, at: float, event: Granted | GaveUp | Reentered | None) -> None:
        start = lock.idle_since
        if start is None:
            return
        idle = at - max(start.at, self._healed or 0.0)
        if idle > self.promises.idle_max:
            what = f"nobody held {name!r} for {idle:.3g} s although somebody waited for it"
            self.violated(at, name, what, start, event)

    def _judge_reach(self, asked: Asked, event: GaveUp) -> None:
        if event.how in ("unavailable", "unknown") and asked.at - (self._healed or 0.0) > self.promises.settle_max:
            what = f"{event.client} found the server of {event.lock!r} {event.how} in a healed world"
            self.violated(event.at, event.lock, what, asked, event)


class _Lock:
    """How many wait for one lock and believe to hold it, and what left it idle."""

    __slots__ = ("believed", "idle_since", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.believed = 0
        self.idle_since: Asked | Released | Lost | Crashed | None = None
