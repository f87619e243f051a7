"""Helpers that make events of histories and run one checker on them."""

from __future__ import annotations

from holdfast_lab.checking import Checker, Promises, Violation
from holdfast_lab.checking import history as h

LOCK = "report"


def started(at: float, client: str, ticket: int, timeout: float | None = None) -> h.AcquireStarted:
    return h.AcquireStarted(at, client, ticket, LOCK, timeout)


def granted(at: float, client: str, ticket: int, fence: int | None = None, deadline: float | None = None) -> h.Granted:
    return h.Granted(at, client, ticket, LOCK, ticket if fence is None else fence, deadline)


def shared(at: float, client: str, ticket: int, limit: int | None = None, fence: int | None = None) -> h.Granted:
    """The grant of a reader, or with a limit of a semaphore's permit."""
    return granted(at, client, ticket, fence)._replace(limit=limit, exclusive=False)


def released(at: float, client: str, ticket: int) -> h.ReleaseStarted:
    return h.ReleaseStarted(at, client, ticket, LOCK)


def lost(at: float, client: str, ticket: int) -> h.Lost:
    return h.Lost(at, client, ticket, LOCK)


def reported(at: float, client: str, ticket: int) -> h.LossReported:
    return h.LossReported(at, client, ticket, LOCK)


def failed(at: float, client: str, ticket: int, outcome: h.WhyFailed = "timed out") -> h.AcquireFailed:
    return h.AcquireFailed(at, client, ticket, LOCK, outcome)


def queued(at: float, client: str, ticket: int, position: int | None = None) -> h.ServerQueued:
    return h.ServerQueued(at, client, ticket, LOCK, position)


def server_granted(at: float, client: str, ticket: int, position: int | None = None) -> h.ServerGranted:
    return h.ServerGranted(at, client, ticket, LOCK, ticket, position)


def removed(at: float, client: str, ticket: int) -> h.ServerRemoved:
    return h.ServerRemoved(at, client, ticket, LOCK)


def wrote(
    at: float, client: str, fence: int, value: h.Plain, before: h.Plain = None, *, accepted: bool = True
) -> h.Wrote:
    return h.Wrote(at, client, fence, LOCK, fence, value, accepted, before)


def check(kind: type[Checker], history: h.History, promises: Promises | None = None) -> Checker:
    """Run this checker on the whole history."""
    assert history == sorted(history, key=lambda event: event.at), "the history is not in the order of time"
    checker = kind(promises or Promises())
    for event in history:
        checker.feed(event)
    checker.finish(history[-1].at)
    return checker


def find(kind: type[Checker], history: h.History, promises: Promises | None = None) -> list[Violation]:
    """The violations that this checker reports."""
    return check(kind, history, promises).violations


def message(kind: type[Checker], history: h.History, promises: Promises | None = None) -> str:
    """The message of the only violation that this checker reports."""
    [violation] = find(kind, history, promises)
    return violation.message


ONE_OF_EACH: h.History = [
    h.AcquireStarted(0, "a", 1, "x", 5, None, exclusive=False),
    h.ServerQueued(0.1, "a", 1, "x", 4, 2, exclusive=False),
    h.ServerGranted(0.2, "a", 1, "x", 9, 4, 2, exclusive=False),
    h.Granted(1 / 3, "a", 1, "x", 9, 30, None, exclusive=False),
    h.Renewed(1, "a", 1, "x", 40),
    h.Checked(1, "a", 1, "x", held=True),
    h.Read(1, "a", 1, "x", 9, None),
    h.Wrote(1, "a", 1, "x", 9, "ü\n", before=3, fenced=False),
    h.TurnBegan(1, "a", 1, "x", waiting=1),
    h.TurnExtended(1, "a", 1, "x", fences=3),
    h.Passed(1, "a", 2, "x", 10, giver=1),
    h.TakenOver(1, "a", 2, "x", giver=1),
    h.MemberGranted(1, "a", 1, "x", 9),
    h.Reentered(2, "a", 2, "x", 9),
    h.AcquireFailed(2, "b", 3, "x", "error", "WouldDeadlock"),
    h.ReleaseStarted(3, "a", 1, "x"),
    h.ReleaseEnded(3, "a", 1, "x", "pending"),
    h.ServerRemoved(3, "a", 1, "x", "released"),
    h.Lost(4, "b", 4, "x", "gone"),
    h.LossReported(4, "b", 4, "x"),
    h.Delivered(4, "b", 9, "x", "acquiring"),
    h.Elected(4, "b", 5, "y", 3),
    h.ClaimStarted(4, "b", 6, "job", 17),
    h.ClaimEnded(4, "b", 6, "job", 17, "not ours"),
    h.OnceCalled(4, "b", 8, "key", repeats_crashes=False, repeats_errors=True),
    h.RunStarted(4, "b", 8, "key", 3, 5),
    h.RunEnded(4, "b", 8, "key", "returned"),
    h.OnceEnded(4, "b", 8, "key", "ran", 8),
    h.RevokeStarted(4, "b", 7, "y", 3),
    h.RevokeEnded(4, "b", 7, "y", 3),
    h.RevokeReceived(4, "b", 5, "y"),
    h.Paused(5, "a"),
    h.Resumed(6, "a"),
    h.Crashed(7, "a", "kill -9"),
    h.Restarted(8, "a"),
    h.Unreachable(8),
    h.Reachable(8),
    h.FaultStarted(8, "restart", "node 2"),
    h.FaultEnded(9, "restart", "node 2"),
    h.StateLost(9, "data", "x", majority=False, detail="failover"),
    h.Healed(10),
    h.Leftover(11, "x", "a", granted=True, ticket=1),
    h.End(11),
]
