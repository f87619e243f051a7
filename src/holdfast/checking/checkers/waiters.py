"""Does a dead waiter leave the queue? Until then it blocks a lock that no client holds."""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import (
    AcquireStarted,
    Crashed,
    Reachable,
    ServerGranted,
    ServerQueued,
    ServerRemoved,
    StateLost,
    Unreachable,
)
from holdfast.checking.promises import Promises

from .base import Checker

IN_FLIGHT = 0.01  # seconds for which the last request of a dead process may be on its way


class DeadWaitersLeave(Checker):
    """A waiter whose process has died leaves the queue within `dead_waiter_max` seconds.

    Time in which the server answers no client does not count, nor does time before it came back with old data. A ticket
    that was granted before the crash, or by the last request of the process, is a holder: it may stay for its ttl.

    A call that waits again while the server still has its lost lease (`lock_all` with a `lock_delay`, say) is not
    judged: it has a holder and a waiter there under one number, and `ServerRemoved` comes when the last has left. The
    holder may stay for its ttl, so that moment says nothing about the waiter.
    """

    name = "dead waiters"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._asked: defaultdict[str, list[int]] = defaultdict(list)  # since the client's last crash
        self._waiting: dict[int, ServerQueued] = {}
        self._held: set[int] = set()  # tickets that were granted and have not left
        self._dead: dict[int, tuple[Crashed, float]] = {}  # the crash, and how long the server had been down by then
        self._down = 0.0  # seconds for which the server has answered no client, all in all
        self._down_since: float | None = None
        self._judged = 0
        if promises.dead_waiter_max is not None and promises.sees_server:
            self.on = {
                AcquireStarted: self._on_asked,
                ServerQueued: self._on_queued,
                ServerGranted: self._on_admitted,
                ServerRemoved: self._on_left,
                Crashed: self._on_crashed,
                StateLost: self._on_forgot,
                Unreachable: self._on_cut_off,
                Reachable: self._on_rejoined,
            }

    @property
    def was_tested(self) -> bool:
        return self._judged > 0

    def finish(self, at: float) -> None:
        for ticket in list(self._waiting):
            self._judge(ticket, at)

    def _on_asked(self, event: AcquireStarted) -> None:
        self._asked[event.client].append(event.ticket)

    def _on_queued(self, event: ServerQueued) -> None:
        if event.ticket not in self._held:
            self._waiting[event.ticket] = event

    def _on_admitted(self, event: ServerGranted) -> None:
        if event.ticket not in self._dead or self._lasted(event.ticket, event.at) <= IN_FLIGHT:
            self._waiting.pop(event.ticket, None)
            self._held.add(event.ticket)

    def _on_left(self, event: ServerRemoved) -> None:
        self._judge(event.ticket, event.at)
        self._held.discard(event.ticket)

    def _on_crashed(self, event: Crashed) -> None:
        for ticket in self._asked.pop(event.client, ()):
            self._dead[ticket] = (event, self._down_until(event.at))

    def _on_forgot(self, event: StateLost) -> None:
        if event.what == "data":
            for ticket, (crashed, _) in self._dead.items():
                # As if the server had been down since the crash.
                self._dead[ticket] = (crashed, self._down_until(event.at) - (event.at - crashed.at))

    def _on_cut_off(self, event: Unreachable) -> None:
        if event.client is None and self._down_since is None:
            self._down_since = event.at

    def _on_rejoined(self, event: Reachable) -> None:
        if event.client is None:
            self._down, self._down_since = self._down_until(event.at), None

    def _down_until(self, at: float) -> float:
        return self._down + (0.0 if self._down_since is None else at - self._down_since)

    def _lasted(self, ticket: int, at: float) -> float:
        """Seconds since its process died, without those in which the server answered no client."""
        crashed, down_before = self._dead[ticket]
        return at - crashed.at - (self._down_until(at) - down_before)

    def _judge(self, ticket: int, at: float) -> None:
        """The ticket left the queue at this moment, or was still there when the history ended."""
        queued = self._waiting.pop(ticket, None)
        if queued is None or ticket not in self._dead:
            return
        self._judged += 1
        crashed, _ = self._dead[ticket]
        lasted = self._lasted(ticket, at)
        if lasted > (self.promises.dead_waiter_max or 0.0):
            what = f"{queued.client} waited for {queued.lock!r} until {at:g} s, {lasted:g} s after its process had died"
            self.violated(at, queued.lock, what, queued, crashed)
