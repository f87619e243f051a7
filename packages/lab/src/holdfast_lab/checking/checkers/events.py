"""Do the events that subscribers receive add up? A gauge made of them must return to zero."""

from __future__ import annotations

from collections import Counter, defaultdict

from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Delivered,
    Granted,
    Lost,
    Paused,
    Reentered,
    ReleaseEnded,
    Resumed,
)
from holdfast_lab.checking.promises import Promises

from .base import NEVER, Checker

_NEXT = {None: "acquiring", "acquiring": "acquired or not acquired", "acquired": "lost or released"}
_FOLLOWS = {
    "acquiring": None,
    "acquired": "acquiring",
    "not acquired": "acquiring",
    "lost": "acquired",
    "released": "acquired",
}


class BalancedEvents(Checker):
    """Each attempt has one `acquiring`, then one `acquired` or `not acquired`, then one `lost` or `released`.

    When the subscribers of a running client have received everything, the attempts that have not ended are exactly its
    running calls and its leases.
    """

    name = "balanced events"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._last: dict[tuple[str, int], Delivered] = {}  # of the attempts that have not ended
        self._over: set[tuple[str, int]] = set()
        self._calls: Counter[tuple[str, str]] = Counter()  # running, by client and lock
        self._leases: Counter[tuple[str, str]] = Counter()
        self._granted: dict[int, Granted] = {}
        self._changed: dict[tuple[str, str], float] = {}
        self._paused: set[str] = set()
        self._resumed: dict[str, float] = {}
        self.on = {
            Delivered: self._delivered,
            AcquireStarted: self._acquire_started,
            AcquireFailed: self._call_ended,
            Reentered: self._call_ended,
            Granted: self._was_granted,
            ReleaseEnded: self._lease_ended,
            Lost: self._lease_ended,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
        }

    @property
    def was_tested(self) -> bool:
        return bool(self._over or self._last)

    def _delivered(self, event: Delivered) -> None:
        attempt = (event.client, event.attempt)
        last = self._last.get(attempt)
        before = None if last is None else last.kind
        if attempt in self._over or _FOLLOWS[event.kind] != before:
            expected = "nothing, because it had ended" if attempt in self._over else _NEXT[before]
            message = (
                f"attempt {event.attempt} of {event.client} for {event.lock!r}: {event.kind!r} instead of {expected}"
            )
            self.violated(event.at, event.lock, message, last, event)
        if event.kind in ("acquiring", "acquired"):
            self._last[attempt] = event
        else:
            self._last.pop(attempt, None)
            self._over.add(attempt)

    def _acquire_started(self, event: AcquireStarted) -> None:
        self._count(self._calls, event, 1)

    def _call_ended(self, event: AcquireFailed | Reentered) -> None:
        self._count(self._calls, event, -1)

    def _was_granted(self, event: Granted) -> None:
        self._count(self._calls, event, -1)
        self._granted[event.ticket] = event
        self._count(self._leases, event, 1)

    def _lease_ended(self, event: ReleaseEnded | Lost) -> None:
        if self._granted.pop(event.ticket, None) is not None:
            self._count(self._leases, event, -1)

    def _count(
        self,
        counter: Counter[tuple[str, str]],
        event: AcquireStarted | AcquireFailed | Reentered | Granted | ReleaseEnded | Lost,
        change: int,
    ) -> None:
        counter[event.client, event.lock] += change
        self._changed[event.client, event.lock] = event.at

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for counter in (self._calls, self._leases):
            for key in [key for key in counter if key[0] == event.client]:
                del counter[key]
        for attempt in [attempt for attempt in self._last if attempt[0] == event.client]:
            del self._last[attempt]

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)
        self._resumed[event.client] = event.at

    def finish(self, at: float) -> None:
        if not self._last and not self._over:
            return  # the history was recorded without a subscriber
        attempts: defaultdict[tuple[str, str, str], list[Delivered]] = defaultdict(list)
        for event in self._last.values():
            attempts[event.client, event.lock, event.kind].append(event)
        for (client, lock), changed in self._changed.items():
            settled = max(changed, self._resumed.get(client, NEVER)) + self.promises.subscriber_max
            if client in self._paused or at <= settled:
                continue
            calls, leases = self._calls[client, lock], self._leases[client, lock]
            # A call of lock_all for several locks has attempts only for the locks that it has requested so far.
            for kind, reported_max, reported_min in (("acquiring", calls, 0), ("acquired", leases, leases)):
                reported = attempts[client, lock, kind]
                if not reported_min <= len(reported) <= reported_max:
                    message = f"{client} has {reported_max} of {lock!r}, but {len(reported)} by its events: {kind!r}"
                    self.violated(at, lock, message, *reported[:3])
