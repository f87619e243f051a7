"""Is a waiter overtaken too often? Checked by counting calls: needs neither events of the server nor FIFO order."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import AcquireFailed, AcquireStarted, Crashed, Granted
from holdfast_lab.checking.promises import Promises

from .base import Checker


class BoundedWaiting(Checker):
    """No call waits while more than a given number of later calls are granted the same lock.

    Before a call is granted, each call that waited when it started may be granted once, and `overtaken_max` others.
    """

    name = "bounded waiting"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Grants] = defaultdict(_Grants)
        self._waiting: dict[int, tuple[AcquireStarted, int]] = {}  # the call, and the count of grants it may wait for
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # calls since the client's last crash
        self._allowed = promises.overtaken_max or 0
        if promises.overtaken_max is not None:
            self.on = {
                AcquireStarted: self._acquire_started,
                Granted: self._granted,
                AcquireFailed: self._acquire_failed,
                Crashed: self._crashed,
            }

    def _acquire_started(self, event: AcquireStarted) -> None:
        grants = self._locks[event.lock]
        self._waiting[event.ticket] = (event, grants.granted + grants.waiting + self._allowed)
        grants.waiting += 1
        self._of_client[event.client].append(event.ticket)

    def _granted(self, event: Granted) -> None:
        grants = self._locks.get(event.lock)
        if grants is not None:
            self._judge(event.ticket, grants, event.at, event)
            grants.granted += 1
            grants.last = event

    def _acquire_failed(self, event: AcquireFailed) -> None:
        grants = self._locks.get(event.lock)
        if grants is not None:
            self._judge(event.ticket, grants, event.at, event)

    def _crashed(self, event: Crashed) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                self._locks[waiting[0].lock].waiting -= 1

    def finish(self, at: float) -> None:
        for ticket, (started, _) in list(self._waiting.items()):
            self._judge(ticket, self._locks[started.lock], at, None)

    def _judge(self, ticket: int, grants: _Grants, at: float, event: Granted | AcquireFailed | None) -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        grants.waiting -= 1
        started, allowed = waiting
        if grants.granted > allowed:
            passed = grants.granted - allowed + self._allowed
            message = f"{started.client} waited for {started.lock!r} while {passed} later calls were granted it"
            self.violated(at, started.lock, message, started, grants.last, event)


class _Grants:
    """How often one lock was granted, and how many calls wait for it."""

    __slots__ = ("granted", "last", "waiting")

    def __init__(self) -> None:
        self.granted = 0
        self.waiting = 0
        self.last: Granted | None = None
