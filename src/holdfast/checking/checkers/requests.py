"""Do requests to let go reach whom they are for, and nobody else?"""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import (
    Crashed,
    Granted,
    Healed,
    Lost,
    ReleaseStarted,
    RevokeEnded,
    RevokeReceived,
    RevokeStarted,
    StateLost,
)
from holdfast.checking.promises import Promises

from .base import Checker


class RequestsHeard(Checker):
    """A request to let go is heard once by the lease that it is for, if that listens and lives, and by no later one.

    In a healed world a lease that the server has a request for hears of it within `revoke_max`. Older leases of the
    lock that still live may hear of it too.
    """

    name = "requests heard"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._healed: float | None = None
        self._asked: dict[str, RevokeStarted] = {}  # for the greatest fence
        self._made: defaultdict[str, list[RevokeEnded]] = defaultdict(list)
        self._listening: dict[int, Granted] = {}  # and has not heard
        self._heard: dict[int, RevokeReceived] = {}
        self._granted_to: dict[int, Granted] = {}
        self._was_tested = False
        self.on = {
            Granted: self._granted,
            RevokeStarted: self._requested,
            RevokeEnded: self._request_made,
            RevokeReceived: self._was_heard,
            ReleaseStarted: self._ended,
            Lost: self._ended,
            Crashed: self._crashed,
            StateLost: self._forgot,
            Healed: self._was_healed,
        }

    @property
    def was_tested(self) -> bool:
        return self._was_tested

    def _granted(self, event: Granted) -> None:
        if event.revocable:
            self._listening[event.ticket] = self._granted_to[event.ticket] = event

    def _requested(self, event: RevokeStarted) -> None:
        self._was_tested = True
        before = self._asked.get(event.lock)
        if before is None or event.fence > before.fence:
            self._asked[event.lock] = event

    def _request_made(self, event: RevokeEnded) -> None:
        self._made[event.lock].append(event)

    def _was_heard(self, event: RevokeReceived) -> None:
        granted = self._granted_to.get(event.ticket)
        if granted is None:
            self.violated(event.at, event.lock, f"{event.client} heard a request for a lease that has no ear", event)
            return
        fence = granted.fence
        before = self._heard.setdefault(event.ticket, event)
        if before is not event:
            what = f"{event.client}'s lease of {event.lock!r} (fence {fence}) heard the same request twice"
            self.violated(event.at, event.lock, what, granted, before, event)
        elif (last := self._asked.get(event.lock)) is None or last.fence < fence:
            whose = "nobody made" if last is None else f"was for fence {last.fence}"
            what = f"{event.client}'s lease of {event.lock!r} (fence {fence}) heard a request that {whose}"
            self.violated(event.at, event.lock, what, last, granted, event)
        self._listening.pop(event.ticket, None)

    def _ended(self, event: ReleaseStarted | Lost) -> None:
        granted = self._listening.pop(event.ticket, None)
        if granted is not None:
            self._judge(granted, event.at, event)

    def _crashed(self, event: Crashed) -> None:
        for ticket in [ticket for ticket, granted in self._listening.items() if granted.client == event.client]:
            del self._listening[ticket]

    def _forgot(self, event: StateLost) -> None:
        """What was asked for before need not be heard any more, but may be: it can have been on its way."""
        if event.what == "data" and event.majority:
            self._made.clear()

    def _was_healed(self, event: Healed) -> None:
        self._healed = event.at

    def finish(self, at: float) -> None:
        for granted in self._listening.values():
            self._judge(granted, at, None)

    def _judge(self, granted: Granted, at: float, event: ReleaseStarted | Lost | None) -> None:
        """It has not heard anything: was there a request, for long enough?"""
        made = next((one for one in self._made.get(granted.lock, ()) if one.fence >= granted.fence), None)
        if made is None or self._healed is None:
            return
        since = max(made.at, granted.at, self._healed)
        if at - since > self.promises.revoke_max:
            what = (
                f"{granted.client}'s lease of {granted.lock!r} (fence {granted.fence}) was asked to let go, "
                f"and had not heard of it {at - since:.3g} s later"
            )
            self.violated(at, granted.lock, what, granted, made, event)
