"""Is anybody passed over and over? Judged by counting calls, so it needs nothing from the server, nor FIFO."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import AcquireFailed, AcquireStarted, Crashed, Granted
from holdfast.checking.promises import Promises

from .base import Checker


class BoundedWaiting(Checker):
    """Nobody waits while more than a given number of calls that came later are granted the same lock.

    Whoever asks may see everybody who waits at that moment served once, and `overtaken_max` others.
    """

    name = "bounded waiting"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Turns] = defaultdict(_Turns)
        self._waiting: dict[int, tuple[AcquireStarted, int]] = {}  # and the number of grants that it may see
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # who asked since the client last crashed
        self._allowed = promises.overtaken_max or 0
        if promises.overtaken_max is not None:
            self.on = {
                AcquireStarted: self._asked,
                Granted: self._granted,
                AcquireFailed: self._gave_up,
                Crashed: self._crashed,
            }

    def _asked(self, event: AcquireStarted) -> None:
        turns = self._locks[event.lock]
        self._waiting[event.ticket] = (event, turns.granted + turns.waiting + self._allowed)
        turns.waiting += 1
        self._of_client[event.client].append(event.ticket)

    def _granted(self, event: Granted) -> None:
        turns = self._locks.get(event.lock)
        if turns is not None:
            self._judge(event.ticket, turns, event.at, event)
            turns.granted += 1
            turns.last = event

    def _gave_up(self, event: AcquireFailed) -> None:
        turns = self._locks.get(event.lock)
        if turns is not None:
            self._judge(event.ticket, turns, event.at, event)

    def _crashed(self, event: Crashed) -> None:
        for ticket in self._of_client.pop(event.client, ()):
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None:
                self._locks[waiting[0].lock].waiting -= 1

    def finish(self, at: float) -> None:
        for ticket, (asked, _) in list(self._waiting.items()):
            self._judge(ticket, self._locks[asked.lock], at, None)

    def _judge(self, ticket: int, turns: _Turns, at: float, event: Granted | AcquireFailed | None) -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        turns.waiting -= 1
        asked, allowed = waiting
        if turns.granted > allowed:
            passed = turns.granted - allowed + self._allowed
            what = f"{asked.client} waited for {asked.lock!r} while {passed} calls that came later were granted it"
            self.violated(at, asked.lock, what, asked, turns.last, event)


class _Turns:
    """How often one lock was granted, and how many wait for it."""

    __slots__ = ("granted", "last", "waiting")

    def __init__(self) -> None:
        self.granted = 0
        self.waiting = 0
        self.last: Granted | None = None
