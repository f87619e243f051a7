"""Does every call end exactly once, in time, and with the right outcome?"""

from __future__ import annotations

from collections import defaultdict

from holdfast.guarantees import Order
from holdfast_lab.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Granted,
    Lost,
    Paused,
    Reachable,
    Reentered,
    ReleaseEnded,
    Resumed,
    ServerQueued,
    Unreachable,
)
from holdfast_lab.checking.promises import Promises

from .base import NEVER, Checker


class ExactOutcomes(Checker):
    """Every call ends in one outcome, neither too early nor too late, and never with "busy" if the server was silent.

    A call times out not before its timeout, and at most `late_max` after it, or 1.5 times that if several locks have to
    be released. A paused process has that long from the time when it resumes. `timeout=0` never queues; `timeout=None`
    never times out. With local hand-overs, a lock is busy without an answer of the server while another caller of the
    same client has it.
    """

    name = "exact outcomes"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._open: dict[int, AcquireStarted] = {}
        self._done: dict[int, Granted | Reentered | AcquireFailed | Crashed] = {}
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # calls since the client's last crash
        self._paused: set[str] = set()
        self._resumed: dict[str, float] = {}
        self._outages: dict[str | None, Unreachable] = {}
        # By client and lock: leases of other calls, which answer a call without the server; the last end of one.
        self._held: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._ended_at: dict[tuple[str, str], float] = {}
        self.on = {
            AcquireStarted: self._acquire_started,
            Granted: self._granted,
            Reentered: self._granted,
            AcquireFailed: self._acquire_failed,
            ReleaseEnded: self._lease_ended,
            Lost: self._lease_ended,
            ServerQueued: self._server_queued,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            Unreachable: self._unreachable,
            Reachable: self._reachable,
        }

    def _acquire_started(self, event: AcquireStarted) -> None:
        ticket = event.ticket
        before = self._open.get(ticket) or self._done.get(ticket)
        if before is not None:
            self.violated(event.at, event.lock, f"ticket {ticket} was used for a second call", before, event)
        self._open[ticket] = event
        self._of_client[event.client].append(ticket)

    def _granted(self, event: Granted | Reentered) -> None:
        self._ended(event)
        if isinstance(event, Granted):
            self._held[event.client, event.lock].add(event.ticket)

    def _lease_ended(self, event: ReleaseEnded | Lost) -> None:
        self._held[event.client, event.lock].discard(event.ticket)
        self._ended_at[event.client, event.lock] = event.at

    def _is_held_by_client(self, started: AcquireStarted) -> bool:
        """Whether another call of this client had the lock at some time since then."""
        if self.promises.order is not Order.TURNS:
            return False  # every call has an answer of the server
        key = (started.client, started.lock)
        return bool(self._held[key]) or self._ended_at.get(key, NEVER) >= started.at

    def _ended(self, event: Granted | Reentered | AcquireFailed) -> AcquireStarted | None:
        """The start of the call, or None if it had ended before."""
        ticket = event.ticket
        started = self._open.pop(ticket, None)
        if started is None:
            before = self._done.get(ticket)
            why = "was never started" if before is None else "had ended already"
            outcome = "granted" if not isinstance(event, AcquireFailed) else event.outcome
            message = f"{event.client}'s call for {event.lock!r} ended ({outcome}), but it {why}"
            self.violated(event.at, event.lock, message, before, event)
            return None
        self._done[ticket] = event
        if started.timeout is not None and event.at - started.at > started.timeout + self._late_max(started):
            self._judge_late(started, event.at, event)
        return started

    def _acquire_failed(self, event: AcquireFailed) -> None:
        started = self._ended(event)
        if started is None or event.outcome != "timed out":
            return
        timeout = started.timeout
        if timeout is None:
            message = f"{event.client} timed out on {event.lock!r} although it had no timeout"
            self.violated(event.at, event.lock, message, started, event)
            return
        waited = event.at - started.at
        if waited < timeout * (1 - self.promises.drift) - self.promises.clock_error:
            message = f"{event.client} gave up {event.lock!r} after {waited:.6g} s, before its timeout of {timeout:g} s"
            self.violated(event.at, event.lock, message, started, event)
        if self._outages:
            self._judge_silence(started, event, timeout)

    def _server_queued(self, event: ServerQueued) -> None:
        started = self._open.get(event.ticket)
        if started is not None and started.timeout == 0:
            message = f"{event.client} queued for {event.lock!r} with timeout=0"
            self.violated(event.at, event.lock, message, started, event)

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for key in [key for key in self._held if key[0] == event.client]:
            del self._held[key]
        for ticket in self._of_client.pop(event.client, ()):
            if self._open.pop(ticket, None) is not None:
                self._done[ticket] = event

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)
        self._resumed[event.client] = event.at

    def _unreachable(self, event: Unreachable) -> None:
        self._outages[event.client] = event

    def _reachable(self, event: Reachable) -> None:
        self._outages.pop(event.client, None)

    def finish(self, at: float) -> None:
        for started in self._open.values():
            is_due = started.timeout is not None and at - started.at > started.timeout + self._late_max(started)
            if is_due and started.client not in self._paused:
                self._judge_late(started, at, None)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _late_max(self, started: AcquireStarted) -> float:
        return self.promises.late_max * (1.0 if started.group is None else 1.5)

    def _judge_late(
        self, started: AcquireStarted, at: float, event: Granted | Reentered | AcquireFailed | None
    ) -> None:
        if at - self._resumed.get(started.client, NEVER) <= self._late_max(started):
            return
        waited = at - started.at
        ended = "ended" if event is not None else "had not ended"
        call = f"{started.client}'s call for {started.lock!r}, timeout={started.timeout:g},"
        message = f"{call} {ended} after {waited:.3g} s"
        self.violated(at, started.lock, message, started, event)

    def _judge_silence(self, started: AcquireStarted, event: AcquireFailed, timeout: float) -> None:
        """A timeout means busy: the server must have said so at the first request and near the end of the timeout."""
        for cut in (self._outages.get(None), self._outages.get(event.client)):
            if cut is None or self._is_held_by_client(started):
                continue
            if cut.at <= started.at or cut.at < started.at + timeout - self.promises.answer_max:
                message = f"{event.client} timed out on {event.lock!r}, but its server was unreachable"
                first, second = (cut, started) if cut.at <= started.at else (started, cut)
                self.violated(event.at, event.lock, message, first, second, event)
                return
