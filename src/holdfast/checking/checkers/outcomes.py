"""Does every call end, once, in time, and with the truth?"""

from __future__ import annotations

from collections import defaultdict

from holdfast.checking.history import (
    AcquireFailed,
    AcquireStarted,
    Crashed,
    Granted,
    Paused,
    Reachable,
    Reentered,
    Resumed,
    ServerQueued,
    Unreachable,
)
from holdfast.checking.promises import Promises

from .base import NEVER, Checker


class ExactOutcomes(Checker):
    """Every call ends in one outcome, never too early or too late, and "busy" is never said of a silent server.

    A timeout is not given before its time is up, nor more than `late_max` after it, or half as long again if there are
    several locks to give back; a process that stood still has that long from when it runs again. `timeout=0` never gets
    in line; `timeout=None` never times out.
    """

    name = "exact outcomes"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._open: dict[int, AcquireStarted] = {}
        self._done: dict[int, Granted | Reentered | AcquireFailed | Crashed] = {}
        self._of_client: defaultdict[str, list[int]] = defaultdict(list)  # who asked since the client last crashed
        self._paused: set[str] = set()
        self._resumed: dict[str, float] = {}
        self._cut_off: dict[str | None, Unreachable] = {}
        self.on = {
            AcquireStarted: self._asked,
            Granted: self._granted,
            Reentered: self._granted,
            AcquireFailed: self._gave_up,
            ServerQueued: self._queued,
            Crashed: self._crashed,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            Unreachable: self._was_cut_off,
            Reachable: self._rejoined,
        }

    def _asked(self, event: AcquireStarted) -> None:
        ticket = event.ticket
        before = self._open.get(ticket) or self._done.get(ticket)
        if before is not None:
            self.violated(event.at, event.lock, f"ticket {ticket} was used for a second call", before, event)
        self._open[ticket] = event
        self._of_client[event.client].append(ticket)

    def _granted(self, event: Granted | Reentered) -> None:
        self._ended(event)

    def _ended(self, event: Granted | Reentered | AcquireFailed) -> AcquireStarted | None:
        """The call it was, unless it had ended before."""
        ticket = event.ticket
        asked = self._open.pop(ticket, None)
        if asked is None:
            before = self._done.get(ticket)
            why = "was never asked for" if before is None else "had ended already"
            outcome = "granted" if not isinstance(event, AcquireFailed) else event.outcome
            what = f"{event.client}'s call for {event.lock!r} ended ({outcome}), but it {why}"
            self.violated(event.at, event.lock, what, before, event)
            return None
        self._done[ticket] = event
        if asked.timeout is not None and event.at - asked.at > asked.timeout + self._late_max(asked):
            self._judge_late(asked, event.at, event)
        return asked

    def _gave_up(self, event: AcquireFailed) -> None:
        asked = self._ended(event)
        if asked is None or event.outcome != "timed out":
            return
        timeout = asked.timeout
        if timeout is None:
            what = f"{event.client} timed out on {event.lock!r} although it had no timeout"
            self.violated(event.at, event.lock, what, asked, event)
            return
        waited = event.at - asked.at
        if waited < timeout * (1 - self.promises.drift) - self.promises.clock_error:
            what = f"{event.client} gave up {event.lock!r} after {waited:.6g} s, before its timeout of {timeout:g} s"
            self.violated(event.at, event.lock, what, asked, event)
        if self._cut_off:
            self._judge_silence(asked, event, timeout)

    def _queued(self, event: ServerQueued) -> None:
        asked = self._open.get(event.ticket)
        if asked is not None and asked.timeout == 0:
            what = f"{event.client} got in line for {event.lock!r} with timeout=0"
            self.violated(event.at, event.lock, what, asked, event)

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for ticket in self._of_client.pop(event.client, ()):
            if self._open.pop(ticket, None) is not None:
                self._done[ticket] = event

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)
        self._resumed[event.client] = event.at

    def _was_cut_off(self, event: Unreachable) -> None:
        self._cut_off[event.client] = event

    def _rejoined(self, event: Reachable) -> None:
        self._cut_off.pop(event.client, None)

    def finish(self, at: float) -> None:
        for asked in self._open.values():
            is_due = asked.timeout is not None and at - asked.at > asked.timeout + self._late_max(asked)
            if is_due and asked.client not in self._paused:
                self._judge_late(asked, at, None)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _late_max(self, asked: AcquireStarted) -> float:
        return self.promises.late_max * (1.0 if asked.group is None else 1.5)

    def _judge_late(self, asked: AcquireStarted, at: float, event: Granted | Reentered | AcquireFailed | None) -> None:
        if at - self._resumed.get(asked.client, NEVER) <= self._late_max(asked):
            return
        waited = at - asked.at
        ended = "came to its end" if event is not None else "had not come to its end"
        what = f"{asked.client}'s call for {asked.lock!r} {ended} after {waited:.3g} s, with timeout={asked.timeout:g}"
        self.violated(at, asked.lock, what, asked, event)

    def _judge_silence(self, asked: AcquireStarted, event: AcquireFailed, timeout: float) -> None:
        """It says busy: then the server must have said so, at the first question and near the end of the time."""
        for cut in (self._cut_off.get(None), self._cut_off.get(event.client)):
            if cut is None:
                continue
            if cut.at <= asked.at or cut.at < asked.at + timeout - self.promises.answer_max:
                what = f"{event.client} was told that {event.lock!r} is busy, by a server that could not be asked"
                first, second = (cut, asked) if cut.at <= asked.at else (asked, cut)
                self.violated(event.at, event.lock, what, first, second, event)
                return
