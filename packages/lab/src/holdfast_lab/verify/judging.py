"""The verdict on a run: for each promise held, broken, documented, not exercised or not promised, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from holdfast.guarantees import Guarantees, Wake
from holdfast_lab.checking import Checker, Judge, Promises, Verdict, Violation
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import (
    BalancedEvents,
    ExactOutcomes,
    FairOrder,
    FencedWrites,
    GrowingFences,
    LossesReported,
    MutualExclusion,
    NothingLeft,
    SingleGrants,
    SteadyProgress,
)
from holdfast_lab.checking.promises import IN_ORDER

from .adapter import PROMISES
from .merge import Histories
from .runner import Evidence, Happened

Status = Literal["held", "broken", "documented", "not exercised", "not promised"]
WAKE_MAX = 0.3  # seconds; a waiter that polls once a second needs 0.5 on average
_STALL = 1.0  # seconds that a busy machine may delay a thread

_BELIEFS: tuple[type[Checker], ...] = (MutualExclusion, GrowingFences, SingleGrants)
_COMPLETE: tuple[type[Checker], ...] = (
    FencedWrites,
    LossesReported,
    ExactOutcomes,
    FairOrder,
    SteadyProgress,
    NothingLeft,
    BalancedEvents,
)
_CHECKERS: Mapping[str, tuple[type[Checker], ...]] = {
    "exclusion": (MutualExclusion,),
    "fence": (GrowingFences, SingleGrants),
    "writes": (FencedWrites,),
    "order": (FairOrder,),
    "losses": (LossesReported,),
    "outcomes": (ExactOutcomes,),
    "progress": (SteadyProgress,),
    "leftovers": (NothingLeft,),
    "events": (BalancedEvents,),
}


class Row(NamedTuple):
    """One promise."""

    promise: str
    declared: str
    status: Status
    broken: int  # violations
    detail: str


class Finding(NamedTuple):
    """A violation, with the promise that it breaks and the fault during or after which it happened."""

    promise: str
    fault: str
    violation: Violation
    status: Literal["broken", "documented"]


class Recovery(NamedTuple):
    """How long the workers needed to recover from a fault."""

    fault: str
    times: int
    typical: float | None  # seconds
    longest: float | None  # None: one of them took too long


class Result(NamedTuple):
    """The verdict."""

    evidence: Evidence
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    recoveries: tuple[Recovery, ...]
    grants: int
    losses: int

    @property
    def is_ok(self) -> bool:
        return not any(row.status == "broken" for row in self.rows)

    @property
    def is_exercised(self) -> bool:
        """Whether any lock was granted at all."""
        return self.grants > 0


def judge(evidence: Evidence) -> Result:
    """Check the histories of a run against the promises of its adapter."""
    return _Judging(evidence).result()


def judge_beliefs(histories: Histories, guarantees: Guarantees | None) -> Verdict:
    """The verdict on exclusion and fences."""
    exact: dict[str, Any] = {"sees_server": False, "clock_error": 0.0}
    return _verdict(
        histories.beliefs, Promises(**exact) if guarantees is None else Promises.of(guarantees, **exact), _BELIEFS
    )


class _Judging:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        guarantees, ttl = evidence.guarantees, evidence.plan.ttl
        bounds: dict[str, Any] = {
            "sees_server": False,
            "reports_losses": all(kind.reports_losses for kind in evidence.kinds),
            "clock_error": _STALL,
            "report_max": _STALL + 1.0,
            "late_max": 15.0,
            "settle_max": 10.0,  # a connection that was half-open may be used again only now
            "idle_max": ttl + 15.0,
            "leftover_max": ttl + 5.0,
        }
        promises = Promises(**bounds) if guarantees is None else Promises.of(guarantees, ttl=ttl, **bounds)
        histories = evidence.histories
        self._verdicts = [
            judge_beliefs(histories, guarantees),
            _verdict(histories.complete, promises, _COMPLETE),
        ]
        self._findings: list[Finding] = []
        self._documented = {key: text for kind in evidence.kinds for key, text in kind.documented.items()}
        self._counts = Counter(type(event) for event in histories.complete)
        self._has_fences = any(isinstance(event, h.Granted) and event.fence for event in histories.beliefs)

    def result(self) -> Result:
        rows = tuple(self._row(promise) for promise in PROMISES)
        findings = sorted(self._findings, key=lambda each: (list(PROMISES).index(each.promise), each.violation.at))
        return Result(
            self._evidence,
            (*rows, self._scope()),
            tuple(findings),
            _recoveries(self._evidence.faults),
            self._counts[h.Granted],
            max(self._counts[h.Lost], self._counts[h.LossReported]),  # a release can find out that the lease was lost
        )

    def _row(self, promise: str) -> Row:
        match promise:
            case "wake":
                return self._wake()
            case "fork":
                return self._fork()
            case "writes" if not self._has_fences:
                return self._unfenced_writes()
            case _:
                return self._checked(promise)

    def _checked(self, promise: str) -> Row:
        declared = self._declared(promise)
        reason = self._why_not(promise)
        if reason is not None:
            return Row(promise, declared, *reason)
        names = [checker.name for checker in _CHECKERS[promise]]
        count = sum(verdict.broken.get(name, 0) for verdict in self._verdicts for name in names)
        if promise == "progress" and not count and not _grants_after_healing(self._evidence.histories.complete):
            return Row(promise, declared, "broken", 1, f"no grant after the last fault; failures: {self._failures()}")
        violations = [each for verdict in self._verdicts for each in verdict.violations if each.checker in names]
        return self._judged(promise, declared, count, violations, self._detail(promise))

    def _judged(self, promise: str, declared: str, count: int, violations: Sequence[Violation], detail: str) -> Row:
        if not count:
            return Row(promise, declared, "held", 0, detail)
        status: Status = "documented"
        limits = []
        for violation in violations:
            fault = _fault_at(self._evidence.faults, violation.at)
            limit = self._documented.get(promise) or self._documented.get(f"{promise}/{fault}")
            self._findings.append(Finding(promise, fault, violation, "broken" if limit is None else "documented"))
            if limit is None:
                status = "broken"
            elif limit not in limits:
                limits.append(limit)
        violated = _count(count, "violation")
        detail = f"{violated}; {detail}" if status == "broken" else f"{violated}: {'; '.join(limits)}"
        return Row(promise, declared, status, count, detail)

    def _declared(self, promise: str) -> str:
        guarantees = self._evidence.guarantees
        if guarantees is None:
            return ""
        return guarantees.as_dict().get(promise, "")

    def _why_not(self, promise: str) -> tuple[Status, int, str] | None:
        """Status, count and detail of a promise that is not judged; None if it is judged."""
        guarantees: Guarantees | None = self._evidence.guarantees
        kinds, handovers = self._evidence.kinds, self._evidence.handovers
        limit = self._documented.get(promise, "")
        if promise == "fence" and not self._has_fences:
            return "not promised", 0, limit or "the library has no fences"
        if promise == "order":
            if guarantees is None or guarantees.order not in IN_ORDER:
                return "not promised", 0, limit or "waiters are granted the lock in any order"
            if not handovers.is_ordered:
                return "not exercised", 0, "the store does not show its queue"
        if promise == "losses" and not all(kind.reports_losses for kind in kinds):
            return "not promised", 0, limit or "the library does not report losses by itself"
        if promise == "events" and not all(kind.reports_events for kind in kinds):
            return "not promised", 0, limit or "the library has no events"
        if not self._counts[h.Granted]:
            return "not exercised", 0, "no lock was granted"
        return None

    def _detail(self, promise: str) -> str:
        counts = self._counts
        writes = self._verdicts[1].statistics
        leases = sum(isinstance(event, h.Granted) for event in self._evidence.histories.beliefs)
        match promise:
            case "exclusion" | "fence":
                return _count(leases, "lease")
            case "writes":
                return f"{counts[h.Wrote]:,} writes, {writes.refused:,} accesses of former holders refused"
            case "order":
                return f"{counts[h.ServerQueued]:,} waiters, queued one by one"
            case "losses":
                return _count(counts[h.LossReported], "loss", "losses")
            case "outcomes":
                failures = f"{writes.failures:,} failures" + (f", {self._failures()}" if writes.failures else "")
                return f"{counts[h.AcquireStarted]:,} calls, {writes.timeouts:,} timeouts, {failures}"
            case "progress":
                return f"{_grants_after_healing(self._evidence.histories.complete):,} grants after the last fault"
            case "leftovers":
                return _count(counts[h.Crashed], "killed worker")
            case _:
                return f"{counts[h.Delivered]:,} events"

    def _failures(self) -> str:
        """The most frequent reason of a failed call."""
        failed = [event for event in self._evidence.histories.complete if isinstance(event, h.AcquireFailed)]
        reasons = Counter(event.reason.partition(":")[0] for event in failed if event.outcome != "timed out")
        if not reasons:
            return "none"
        reason, times = reasons.most_common(1)[0]
        return f"most of them {reason} ({times:,})"

    def _unfenced_writes(self) -> Row:
        verdict = self._verdicts[1]
        notes = [note for note in verdict.notes if note.checker == FencedWrites.name]
        return self._judged(
            "writes", "", verdict.statistics.lost_updates, notes, f"{self._counts[h.Wrote]:,} writes without a fence"
        )

    def _wake(self) -> Row:
        guarantees, handovers = self._evidence.guarantees, self._evidence.handovers
        declared = self._declared("wake")
        if guarantees is None or guarantees.wake is not Wake.PUSH:
            return Row("wake", declared, "not promised", 0, "waiters poll")
        delays = _handover_delays(self._evidence.histories.complete, handovers.lock)
        if not delays:
            return Row("wake", declared, "not exercised", 0, "there was no hand-over")
        typical = median(delays)
        detail = f"{len(delays)} hand-overs, median {typical * 1000:.3g} ms"
        return Row("wake", declared, "held" if typical <= WAKE_MAX else "broken", int(typical > WAKE_MAX), detail)

    def _fork(self) -> Row:
        histories = self._evidence.histories
        if not histories.forks:
            reason = self._evidence.not_exercised.get("fork", "the fault was not chosen")
            return Row("fork", "", "not exercised", 0, reason)
        violations = [
            Violation(
                "fork", PROMISES["fork"], event.at, event.lock, f"{event.client} holds its parent's lease", (event,)
            )
            for event in histories.held_by_children
        ]
        return self._judged("fork", "", len(violations), violations, _count(histories.forks, "fork"))

    def _scope(self) -> Row:
        """Workers of one machine can show no more than that processes of this machine exclude each other."""
        declared = self._declared("scope")
        if not self._counts[h.Granted] or self._verdicts[0].broken.get(MutualExclusion.name):
            return Row("scope", declared, "not exercised", 0, "depends on exclusion")
        return Row("scope", declared, "held", 0, f"{self._evidence.plan.workers} processes of this machine")


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _verdict(history: h.History, promises: Promises, checkers: tuple[type[Checker], ...]) -> Verdict:
    judging = Judge(promises, checkers)
    for event in history:
        judging.feed(event)
    return judging.verdict()


def _fault_at(faults: Sequence[Happened], at: float) -> str:
    """The last fault that had begun by then."""
    return next((fault.name for fault in reversed(faults) if fault.began <= at), "no fault")


def _recoveries(faults: Sequence[Happened]) -> tuple[Recovery, ...]:
    recoveries = []
    for name in dict.fromkeys(fault.name for fault in faults):
        known = [fault.recovered for fault in faults if fault.name == name]
        seconds = [each for each in known if each is not None]
        longest = max(seconds) if len(seconds) == len(known) else None
        recoveries.append(Recovery(name, len(known), median(seconds) if seconds else None, longest))
    return tuple(recoveries)


def _handover_delays(history: h.History, lock: str) -> list[float]:
    """Seconds from each release of this lock to the grant of the next waiter."""
    delays: list[float] = []
    released: float | None = None
    started: dict[int, float] = {}
    for event in history:
        if getattr(event, "lock", None) != lock:
            continue
        if isinstance(event, h.AcquireStarted):
            started[event.ticket] = event.at
        elif isinstance(event, h.ReleaseStarted):
            released = event.at
        elif isinstance(event, h.Granted):
            if released is not None and started[event.ticket] < released:
                delays.append(event.at - released)
            released = None
    return delays


def _grants_after_healing(history: h.History) -> int:
    healed = next((event.at for event in history if isinstance(event, h.Healed)), float("inf"))
    return sum(isinstance(event, h.Granted) and event.at > healed for event in history)
