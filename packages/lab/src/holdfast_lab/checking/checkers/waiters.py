"""Is a dead waiter removed from the queue? Until then it blocks a lock that no client holds."""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
    AcquireStarted,
    Crashed,
    Reachable,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
    StateLost,
    Unreachable,
)
from holdfast_lab.checking.promises import Promises

from .base import Checker

IN_FLIGHT = 0.01  # seconds for which the last request of a dead process may be on its way


class DeadWaitersRemoved(Checker):
    """A waiter whose process has died is removed from the queue within `dead_waiter_max` seconds.

    Time in which the server answers no client does not count, nor does time before it restarted with old data. A ticket
    that was granted before the crash, or by the last request of the process, is a holder: it may stay for its ttl.

    A call that waits again while the server still has its lost lease (`lock_all` with a `lock_delay`, say) is not
    judged: it has a holder and a waiter there under one number, and `ServerRemoved` follows when both are gone. The
    holder may stay for its ttl, so that moment says nothing about the waiter.
    """

    name = "dead waiters"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._tickets: defaultdict[str, list[int]] = defaultdict(list)  # since the client's last crash
        self._waiting: dict[int, ServerQueued] = {}
        self._held: set[int] = set()  # granted tickets that are not removed yet
        self._dead: dict[int, tuple[Crashed, float]] = {}  # the crash, and how long the server had been down by then
        self._down = 0.0  # seconds in which the server has answered no client, in total
        self._down_since: float | None = None
        self._judged = 0
        if promises.dead_waiter_max is not None and promises.sees_server:
            self.on = {
                AcquireStarted: self._acquire_started,
                ServerQueued: self._server_queued,
                ServerGranted: self._server_granted,
                ServerRemoved: self._server_removed,
                Crashed: self._crashed,
                StateLost: self._state_lost,
                Unreachable: self._unreachable,
                Reachable: self._reachable,
            }

    @property
    def was_tested(self) -> bool:
        return self._judged > 0

    def finish(self, at: float) -> None:
        for ticket in list(self._waiting):
            self._judge(ticket, at)

    def _acquire_started(self, event: AcquireStarted) -> None:
        self._tickets[event.client].append(event.ticket)

    def _server_queued(self, event: ServerQueued) -> None:
        if event.ticket not in self._held:
            self._waiting[event.ticket] = event

    def _server_granted(self, event: ServerGranted) -> None:
        if event.ticket not in self._dead or self._lasted(event.ticket, event.at) <= IN_FLIGHT:
            self._waiting.pop(event.ticket, None)
            self._held.add(event.ticket)

    def _server_removed(self, event: ServerRemoved) -> None:
        self._judge(event.ticket, event.at)
        self._held.discard(event.ticket)

    def _crashed(self, event: Crashed) -> None:
        for ticket in self._tickets.pop(event.client, ()):
            self._dead[ticket] = (event, self._down_until(event.at))

    def _state_lost(self, event: StateLost) -> None:
        if event.kind == "data":
            for ticket, (crashed, _) in self._dead.items():
                # As if the server had been down since the crash.
                self._dead[ticket] = (crashed, self._down_until(event.at) - (event.at - crashed.at))

    def _unreachable(self, event: Unreachable) -> None:
        if event.client is None and self._down_since is None:
            self._down_since = event.at

    def _reachable(self, event: Reachable) -> None:
        if event.client is None:
            self._down, self._down_since = self._down_until(event.at), None

    def _down_until(self, at: float) -> float:
        return self._down + (0.0 if self._down_since is None else at - self._down_since)

    def _lasted(self, ticket: int, at: float) -> float:
        """Seconds since its process died, without those in which the server answered no client."""
        crashed, down_before = self._dead[ticket]
        return at - crashed.at - (self._down_until(at) - down_before)

    def _judge(self, ticket: int, at: float) -> None:
        """The ticket was removed at this time, or was still queued when the history ended."""
        queued = self._waiting.pop(ticket, None)
        if queued is None or ticket not in self._dead:
            return
        self._judged += 1
        crashed, _ = self._dead[ticket]
        lasted = self._lasted(ticket, at)
        if lasted > (self.promises.dead_waiter_max or 0.0):
            message = (
                f"{queued.client} waited for {queued.lock!r} until {at:g} s, {lasted:g} s after its process had died"
            )
            self.violated(at, queued.lock, message, queued, crashed)
