"""Is each loss reported to its holder in time and exactly once, and does a lost lease stay lost?

The events that each phase of a lease allows, with the next phase; any other event breaks the promise:

    HELD       Renewed before the deadline; Checked held before the deadline
               Lost -> LOST        ReleaseStarted -> RELEASING
    RELEASING  ReleaseEnded released or pending -> OVER
               Lost, LossReported or ReleaseEnded lost -> LOST: this was the answer to the release
    LOST       LossReported once; ReleaseStarted and ReleaseEnded lost: the call that raises LockLost
    OVER       none; a crash of the client leads here from every phase
"""

from __future__ import annotations

from collections import defaultdict

from holdfast_lab.checking.history import (
    Checked,
    Crashed,
    Event,
    Granted,
    LossReported,
    Lost,
    Paused,
    ReleaseEnded,
    ReleaseStarted,
    Renewed,
    Resumed,
    StateLost,
)
from holdfast_lab.checking.promises import Promises

from .base import NEVER, Checker

HELD, RELEASING, LOST, OVER = "held", "being released", "lost", "over"


class LossesReported(Checker):
    """A loss is reported once, before the next conflicting grant, and no lease reports held after its deadline or loss.

    A paused process can neither notice nor report a loss: it has `report_max` from the time when it resumes.
    """

    name = "losses reported"

    def __init__(self, promises: Promises) -> None:
        super().__init__(promises)
        self._leases: dict[int, _Lease] = {}
        self._locks: defaultdict[str, _Open] = defaultdict(_Open)
        # Leases that each client was granted since its last crash.
        self._of_client: defaultdict[str, list[_Lease]] = defaultdict(list)
        self._paused: set[str] = set()
        self._resumed: dict[str, float] = {}
        self._slack = promises.clock_error
        self.on = {
            Granted: self._granted,
            Renewed: self._renewed,
            Checked: self._checked,
            ReleaseStarted: self._released,
            ReleaseEnded: self._release_ended,
            Lost: self._lost,
            LossReported: self._loss_reported,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            Crashed: self._crashed,
            StateLost: self._state_lost,
        }

    # ── events of a lease ────────────────────────────────────────────────────────────────────────────────────────

    def _granted(self, event: Granted) -> None:
        lock = self._locks[event.lock]
        if lock.exclusive:
            self._expect_reported(lock.exclusive, event)
        shared = lock.shared
        if shared and (event.exclusive or (event.limit is not None and len(shared) >= event.limit)):
            self._expect_reported(shared, event)
        lease = _Lease(event)
        (lock.exclusive if event.exclusive else shared)[event.ticket] = lease
        self._leases[event.ticket] = lease
        self._of_client[event.client].append(lease)

    def _renewed(self, event: Renewed) -> None:
        lease = self._leases.get(event.ticket)
        if lease is None:
            return
        if lease.phase is LOST or lease.phase is OVER:
            self._wrong(event, lease, f"was renewed after it was {_past(lease)}")
        elif lease.phase is HELD:
            if lease.is_past(event.at - self._slack):
                self._wrong(event, lease, "was revived by a renewal after its deadline")
            lease.deadline = event.deadline

    def _checked(self, event: Checked) -> None:
        lease = self._leases.get(event.ticket)
        if lease is None or not event.held:
            return
        if lease.phase is not HELD:
            self._wrong(event, lease, f"reported held after it was {_past(lease)}")
        elif lease.is_past(event.at - self._slack):
            self._wrong(event, lease, f"reported held after its deadline, {lease.deadline:g} s")

    def _released(self, event: ReleaseStarted) -> None:
        lease = self._leases.get(event.ticket)
        if lease is not None and lease.phase is HELD:
            lease.phase, lease.ended = RELEASING, event
            self._close(lease)

    def _release_ended(self, event: ReleaseEnded) -> None:
        lease = self._leases.get(event.ticket)
        if lease is None:
            return
        if event.outcome == "lost":
            if lease.phase is OVER:
                self._wrong(event, lease, f"was lost after it was {_past(lease)}")
            elif lease.phase is not LOST:
                lease.phase, lease.ended = LOST, event
        elif event.outcome == "released" and lease.phase is LOST:
            self._wrong(event, lease, "was released as if it had not been lost")
        elif lease.phase is RELEASING:
            if event.outcome == "released" and lease.ended is not None and lease.is_past(lease.ended.at - self._slack):
                self._wrong(event, lease, f"was released as if held, after its deadline, {lease.deadline:g} s")
            lease.phase = OVER

    def _lost(self, event: Lost) -> None:
        lease = self._leases.get(event.ticket)
        if lease is None:
            return
        if lease.phase is LOST or lease.phase is OVER:
            self._wrong(event, lease, f"was lost after it was {_past(lease)}")
            return
        if lease.phase is HELD and lease.deadline is not None:
            late = event.at - max(lease.deadline, self._resumed.get(event.client, NEVER))
            if late > self.promises.report_max:
                self._wrong(event, lease, f"was noticed as expired {late:.3g} s late")
        lease.phase, lease.ended = LOST, event

    def _loss_reported(self, event: LossReported) -> None:
        lease = self._leases.get(event.ticket)
        if lease is None:
            return
        if lease.reported is not None:
            self._wrong(event, lease, "was reported lost a second time")
        elif lease.phase is HELD or lease.phase is OVER:
            self._wrong(event, lease, f"was reported lost although it was {_past(lease)}")
        elif lease.phase is LOST:
            self._judge_delay(event.at, lease, event)
        else:
            lease.phase, lease.ended = LOST, event
        lease.reported = event
        self._close(lease)

    # ── events of clients and of the server ──────────────────────────────────────────────────────────────────────

    def _was_paused(self, event: Paused) -> None:
        self._paused.add(event.client)

    def _was_resumed(self, event: Resumed) -> None:
        self._paused.discard(event.client)
        self._resumed[event.client] = event.at

    def _crashed(self, event: Crashed) -> None:
        self._paused.discard(event.client)
        for lease in self._of_client.pop(event.client, ()):
            lease.phase = OVER
            lease.ended = event
            self._close(lease)

    def _state_lost(self, event: StateLost) -> None:
        """A holder cannot learn of this before its next renewal, and the next grant need not wait for that."""
        if not self.may_end_leases(event):
            return
        for name in self._locks if event.lock is None else [event.lock]:
            if name in self._locks:
                self._locks[name].exclusive.clear()
                self._locks[name].shared.clear()

    def finish(self, at: float) -> None:
        report_max = self.promises.report_max
        for lease in self._leases.values():
            client = lease.granted.client
            if client in self._paused or at - self._resumed.get(client, NEVER) <= report_max:
                continue
            if lease.phase is HELD and lease.is_past(at - report_max):
                message = f"was never noticed as expired, although its deadline was {lease.deadline:g} s"
                self._report(at, lease, message)
            elif lease.phase is LOST and lease.reported is None:
                self._judge_delay(at, lease, None)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _expect_reported(self, open_leases: dict[int, _Lease], grant: Granted) -> None:
        """A conflicting grant: the loss of every ended lease must have been reported. Each lease is checked once."""
        now, slack = grant.at, self._slack
        for ticket, lease in list(open_leases.items()):
            if grant.owner and grant.owner == lease.granted.owner:
                continue  # no conflict
            if lease.phase is HELD and not lease.is_past(now):
                continue  # at most an overlap, which the exclusion checker reports
            del open_leases[ticket]
            client = lease.granted.client
            if client in self._paused or now - self._resumed.get(client, NEVER) <= self.promises.report_max:
                continue
            if lease.phase is HELD and lease.is_past(now - slack):
                message = f"had expired on its own clock, but no loss was reported before {grant.client} was granted it"
                self._report(now, lease, message, grant)
            elif lease.ended is not None and lease.ended.at + slack < now and self.promises.reports_losses:
                self._report(now, lease, f"was lost, but not reported before {grant.client} was granted it", grant)

    def _judge_delay(self, at: float, lease: _Lease, reported: LossReported | None) -> None:
        if lease.ended is None or not self.promises.reports_losses:
            return
        delay = at - max(lease.ended.at, self._resumed.get(lease.granted.client, NEVER))
        if delay > self.promises.report_max:
            message = f"was reported lost {delay:.3g} s late" if reported else "was lost and never reported"
            self._report(at, lease, message, reported)

    def _wrong(self, event: Event, lease: _Lease, message: str) -> None:
        self._report(event.at, lease, message, event)

    def _report(self, at: float, lease: _Lease, message: str, event: Event | None = None) -> None:
        granted = lease.granted
        sentence = f"{granted.client}'s lease of {granted.lock!r} (fence {granted.fence}) {message}"
        self.violated(at, granted.lock, sentence, granted, lease.ended, event)

    def _close(self, lease: _Lease) -> None:
        granted = lease.granted
        lock = self._locks[granted.lock]
        (lock.exclusive if granted.exclusive else lock.shared).pop(granted.ticket, None)


class _Open:
    """The leases of one lock that are held, or lost and not yet reported."""

    __slots__ = ("exclusive", "shared")

    def __init__(self) -> None:
        self.exclusive: dict[int, _Lease] = {}
        self.shared: dict[int, _Lease] = {}


class _Lease:
    """One lease and its phase."""

    __slots__ = ("deadline", "ended", "granted", "phase", "reported")

    def __init__(self, granted: Granted) -> None:
        self.granted = granted
        self.deadline = granted.deadline
        self.phase = HELD
        self.ended: Event | None = None
        self.reported: LossReported | None = None

    def is_past(self, at: float) -> bool:
        return self.deadline is not None and self.deadline < at


def _past(lease: _Lease) -> str:
    """The phase as it is printed after "after it was"."""
    if lease.phase is OVER:
        return "gone with its process" if isinstance(lease.ended, Crashed) else "released"
    return lease.phase
