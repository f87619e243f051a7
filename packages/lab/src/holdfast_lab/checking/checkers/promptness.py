"""Is a free lock granted to a living waiter, however many dead ones are queued before it?"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
    Crashed,
    Paused,
    Restarted,
    Resumed,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker


class PromptGrants(Checker):
    """A waiter that runs does not wait for longer than `grant_max` while no client has the lock.

    This is checked by the server's events, and only if `grant_max` is set: in worlds where clients die or are paused
    and no other fault happens.
    """

    name = "prompt grants"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._locks: defaultdict[str, _Lock] = defaultdict(_Lock)
        self._runs_since: defaultdict[str, float | None] = defaultdict(float)  # None: it is dead or paused
        self._grant_max = promises.grant_max or 0.0
        if promises.grant_max is not None:
            self.on = {
                ServerQueued: self._server_queued,
                ServerGranted: self._server_granted,
                ServerRemoved: self._server_removed,
                Crashed: self._stopped,
                Paused: self._stopped,
                Restarted: self._runs,
                Resumed: self._runs,
            }

    def _server_queued(self, event: ServerQueued) -> None:
        self._locks[event.lock].waiting[event.ticket] = event

    def _server_granted(self, event: ServerGranted) -> None:
        lock = self._locks[event.lock]
        self._judge(lock, event.at, event)
        lock.waiting.pop(event.ticket, None)
        lock.held.add(event.ticket)

    def _server_removed(self, event: ServerRemoved) -> None:
        lock = self._locks[event.lock]
        self._judge(lock, event.at, event)
        lock.waiting.pop(event.ticket, None)
        if event.ticket in lock.held:
            lock.held.discard(event.ticket)
            lock.free_since = event.at  # a waiter that leaves does not make the lock free

    def _stopped(self, event: Crashed | Paused) -> None:
        for lock in self._locks.values():
            self._judge(lock, event.at, event)
            if isinstance(event, Crashed):  # the next process of this name does not use its tickets
                lock.waiting = {
                    ticket: queued for ticket, queued in lock.waiting.items() if queued.client != event.client
                }
        self._runs_since[event.client] = None

    def _runs(self, event: Restarted | Resumed) -> None:
        self._runs_since[event.client] = event.at

    def finish(self, at: float) -> None:
        for lock in self._locks.values():
            self._judge(lock, at, None)

    def _judge(self, lock: _Lock, at: float, event: ServerGranted | ServerRemoved | Crashed | Paused | None) -> None:
        if lock.held:
            return
        for queued in lock.waiting.values():
            runs_since = self._runs_since[queued.client]
            if runs_since is None:
                continue
            waited = at - max(lock.free_since, queued.at, runs_since)
            if waited > self._grant_max:
                message = f"{queued.client} waited {waited:.3g} s for {queued.lock!r}, which no client had"
                self.violated(at, queued.lock, message, queued, event)
                return


class _Lock:
    """The tickets that the server has of one lock."""

    __slots__ = ("free_since", "held", "waiting")

    def __init__(self) -> None:
        self.free_since = 0.0
        self.held: set[int] = set()
        self.waiting: dict[int, ServerQueued] = {}
