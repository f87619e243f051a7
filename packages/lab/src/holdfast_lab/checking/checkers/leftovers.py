"""Is the server clean at the end? An unused ticket must not stay and block others."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import AcquireFailed, AcquireStarted, Crashed, Event, Leftover, Lost, ReleaseStarted
from holdfast_lab.checking.promises import Promises

from .base import NEVER, Checker


class NothingLeft(Checker):
    """At the end the server keeps no ticket that no living client has a claim on, except for a short time.

    A claim lasts from AcquireStarted to AcquireFailed, ReleaseStarted, Lost or the client's crash; then `leftover_max`
    starts.
    """

    name = "nothing left"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._claims: dict[int, AcquireStarted] = {}
        self._ended: dict[int, Event] = {}
        self._of_client: defaultdict[str, list[AcquireStarted]] = defaultdict(list)  # calls since its last crash
        self._by_name: dict[tuple[str, str], float] | None = None
        self.on = {
            AcquireStarted: self._acquire_started,
            AcquireFailed: self._claim_ended,
            ReleaseStarted: self._claim_ended,
            Lost: self._claim_ended,
            Crashed: self._crashed,
            Leftover: self._leftover,
        }

    def _acquire_started(self, event: AcquireStarted) -> None:
        self._claims[event.ticket] = event
        self._of_client[event.client].append(event)

    def _claim_ended(self, event: AcquireFailed | ReleaseStarted | Lost) -> None:
        self._ended.setdefault(event.ticket, event)

    def _crashed(self, event: Crashed) -> None:
        for started in self._of_client.pop(event.client, ()):
            self._ended.setdefault(started.ticket, event)

    def _leftover(self, event: Leftover) -> None:
        started = ended = None
        if event.ticket is not None:
            started, ended = self._claims.get(event.ticket), self._ended.get(event.ticket)
            if started is not None and ended is None:
                return
            until = NEVER if ended is None else ended.at
        else:
            until = self._until().get((event.client, event.lock), NEVER)
        if event.at - until > self.promises.leftover_max:
            state = "still holds" if event.granted else "still waits for"
            since = (
                "no client has a claim on it"
                if until == NEVER
                else f"no client has had a claim on it since {until:g} s"
            )
            message = f"on the server {event.client} {state} {event.lock!r} at {event.at:g} s, but {since}"
            self.violated(event.at, event.lock, message, started, ended, event)

    def _until(self) -> dict[tuple[str, str], float]:
        """The time until which each client had a claim on each lock; inf if it still has. Computed once, at the end."""
        if self._by_name is None:
            self._by_name = {}
            for ticket, started in self._claims.items():
                ended = self._ended.get(ticket)
                until = float("inf") if ended is None else ended.at
                key = (started.client, started.lock)
                self._by_name[key] = max(until, self._by_name.get(key, NEVER))
        return self._by_name
