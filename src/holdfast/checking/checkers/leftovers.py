"""Is the server clean in the end? What nobody wants any more must not stay and be in somebody's way."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import AcquireFailed, AcquireStarted, Crashed, Event, Leftover, Lost, ReleaseStarted
from holdfast.checking.promises import Promises

from .base import NEVER, Checker


class NothingLeft(Checker):
    """In the end the server keeps no ticket on which no living client has a claim, except for a short time.

    A claim is from Asked to GaveUp, Released, Lost or the client's crash; then `leftover_max` begins.
    """

    name = "nothing left"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._claims: dict[int, AcquireStarted] = {}
        self._ended: dict[int, Event] = {}
        self._of_client: defaultdict[str, list[AcquireStarted]] = defaultdict(
            list
        )  # who asked since the client last crashed
        self._by_name: dict[tuple[str, str], float] | None = None
        self.on = {
            AcquireStarted: self._asked,
            AcquireFailed: self._over,
            ReleaseStarted: self._over,
            Lost: self._over,
            Crashed: self._crashed,
            Leftover: self._remained,
        }

    def _asked(self, event: AcquireStarted) -> None:
        self._claims[event.ticket] = event
        self._of_client[event.client].append(event)

    def _over(self, event: AcquireFailed | ReleaseStarted | Lost) -> None:
        self._ended.setdefault(event.ticket, event)

    def _crashed(self, event: Crashed) -> None:
        for asked in self._of_client.pop(event.client, ()):
            self._ended.setdefault(asked.ticket, event)

    def _remained(self, event: Leftover) -> None:
        asked = ended = None
        if event.ticket is not None:
            asked, ended = self._claims.get(event.ticket), self._ended.get(event.ticket)
            if asked is not None and ended is None:
                return
            until = NEVER if ended is None else ended.at
        else:
            until = self._until().get((event.client, event.lock), NEVER)
        if event.at - until > self.promises.leftover_max:
            is_there = "still holds" if event.granted else "still waits for"
            since = "nobody has a claim on it" if until == NEVER else f"nobody has had a claim on it since {until:g} s"
            what = f"on the server {event.client} {is_there} {event.lock!r} at {event.at:g} s, but {since}"
            self.violated(event.at, event.lock, what, asked, ended, event)

    def _until(self) -> dict[tuple[str, str], float]:
        """Until when each client had a claim on each lock; for ever, if it still has. Worked out once, at the end."""
        if self._by_name is None:
            self._by_name = {}
            for ticket, asked in self._claims.items():
                ended = self._ended.get(ticket)
                until = float("inf") if ended is None else ended.at
                key = (asked.client, asked.lock)
                self._by_name[key] = max(until, self._by_name.get(key, NEVER))
        return self._by_name
