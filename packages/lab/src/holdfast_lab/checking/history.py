"""Histories: the actions and beliefs of the clients of a lock, and the faults that hit them, as a list of events.

Events are in the order of `at`, in seconds on one true clock; events with equal times are in the order of the list. A
recorder (the simulator, `verify`) only records events; the checkers decide whether they are allowed.

    from holdfast_lab.checking import history as h
    events: h.History = [h.AcquireStarted(0.0, "a", 1, "x"), h.Granted(0.1, "a", 1, "x", fence=1), h.End(9.0)]

The events of one attempt to acquire a lock. Its `ticket` is a number that is unique in the history:

    client    AcquireStarted ─┬─> Granted ── Renewed* ─┬─> ReleaseStarted ──> ReleaseEnded
                              │     └── Checked*       └─> Lost ──> LossReported
                              ├─> Reentered
                              └─> AcquireFailed
    server    ServerQueued? ──> ServerGranted ──> ServerRemoved       (only a simulator can record these)

A belief lasts from `Granted` to the first of: ReleaseStarted, Lost, the deadline (which Renewed moves), a crash of its
client. A `client` is a process, which can be paused or crash. A call for several locks has one ticket for each, all
with the same `group`: each is MemberGranted when it is acquired, and either all are Granted at the same time or none.
If a call needs a second ticket on the server because an answer was late, its ticket in the history stays the same.
A lease that is transferred ends with ReleaseStarted and ReleaseEnded. The call that adopts it has a ticket of its own,
and `adopts` is the ticket of the transferred lease.

Events are tuples, so Paused(1.0, "a") == Resumed(1.0, "a"): compare histories by their lines, which name the types.

This module has no checks, clocks or I/O. New fields of an event type have defaults and come last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Plain: TypeAlias = int | str | None
WhyFailed = Literal["timed out", "unavailable", "unknown", "cancelled", "deadlock", "gone", "error"]
ReleaseOutcome = Literal["released", "transferred", "lost", "pending"]
StateKind = Literal["data", "lease", "clock"]
ClaimOutcome = Literal["ours", "not ours", "unavailable", "unknown", "cancelled", "error"]
# skipped: the lock was busy, or after_crash="skip". raised: by the body. lost: the run was replaced, or did not start.
OnceOutcome = Literal[
    "ran",
    "done",
    "skipped",
    "interrupted",
    "failed",
    "raised",
    "lost",
    "busy",
    "unavailable",
    "unknown",
    "cancelled",
    "error",
]


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────


class AcquireStarted(NamedTuple):
    """A call to acquire began. Limit and exclusive as in core/tickets.py: a mutex has limit 1 and is exclusive."""

    at: float
    client: str
    ticket: int
    lock: str
    timeout: float | None = None
    limit: int | None = 1
    exclusive: bool = True
    group: int | None = None  # the same for all locks of one call; events in the order of acquisition
    owner: str = ""  # leases of the same named owner overlap, with one fence
    adopts: int | None = None  # the ticket of a transferred lease, which this call takes over
    caller: int = 0  # the thread or task that makes the call, if its client has several


class Granted(NamedTuple):
    """The call returned a lease: from now on the client believes that it holds the lock.

    `deadline` is the true time at which the belief ends on the client's own clock, if known.
    """

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    deadline: float | None = None
    limit: int | None = 1
    exclusive: bool = True
    renews: bool = False  # renewed automatically while it is held
    group: int | None = None
    delay: float = 0.0  # seconds after a loss in which no other client may be granted the lock
    owner: str = ""
    revocable: bool = False  # receives revocation requests
    min_hold: float = 0.0  # seconds from the grant in which no other client may be granted the lock
    adopts: int | None = None  # the ticket of the transferred lease that this one continues


class Passed(NamedTuple):
    """The client passed the lease of its ticket `giver` on to this one, without a request: a local hand-over."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    giver: int


class TurnBegan(NamedTuple):
    """The client received the lease of this ticket. `waiting` other calls of the client waited for it."""

    at: float
    client: str
    ticket: int
    lock: str
    waiting: int


class TurnExtended(NamedTuple):
    """The server reserved this many fences for the client of this ticket, which holds the lock."""

    at: float
    client: str
    ticket: int
    lock: str
    fences: int


class TakenOver(NamedTuple):
    """The call took over a ticket that was granted to another call of its client, after that call had given up."""

    at: float
    client: str
    ticket: int
    lock: str
    giver: int


class MemberGranted(NamedTuple):
    """The call acquired one lock of its group. The belief begins when it has all of them."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class Reentered(NamedTuple):
    """The call returned a lease that the client already held: no new belief, the same fence."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class AcquireFailed(NamedTuple):
    """The call ended without a lease. `timed out`: busy; `unavailable` and `unknown`: the server did not answer.

    `deadlock`: it was found to wait in a cycle. `gone`: there was no such lease to adopt.
    """

    at: float
    client: str
    ticket: int
    lock: str
    outcome: WhyFailed
    reason: str = ""


class Renewed(NamedTuple):
    """The belief has a new deadline (true time): a renewal, another ttl, or another rate of the client's clock."""

    at: float
    client: str
    ticket: int
    lock: str
    deadline: float
    is_answered: bool = True  # False: recorded before the request, which may be executed and get no answer


class Checked(NamedTuple):
    """The client checked its lease (`held`, `check()`), with this result."""

    at: float
    client: str
    ticket: int
    lock: str
    held: bool


class ReleaseStarted(NamedTuple):
    """The call to release or to transfer began (the last one of a re-entered lease): the belief ends."""

    at: float
    client: str
    ticket: int
    lock: str
    within: float | None = None  # a transfer: seconds in which another call may adopt the lease


class ReleaseEnded(NamedTuple):
    """The call to release or transfer returned: done, lost (it raised LockLost) or pending (no answer)."""

    at: float
    client: str
    ticket: int
    lock: str
    outcome: ReleaseOutcome = "released"


class Lost(NamedTuple):
    """The lease became lost, by its own clock or by an answer of the server: the belief ends here at the latest."""

    at: float
    client: str
    ticket: int
    lock: str
    reason: str = ""


class LossReported(NamedTuple):
    """The loss was reported to the user's code. Record one kind of report (`on_lost`, for example), every time."""

    at: float
    client: str
    ticket: int
    lock: str


class Delivered(NamedTuple):
    """A subscriber received an event of the client. Recorded for events that begin or end an attempt or a lease."""

    at: float
    client: str
    attempt: int
    lock: str
    kind: str  # acquiring, acquired, not acquired, lost or released
    outcome: str = ""


class Elected(NamedTuple):
    """The lease makes its client the leader of this term while it is held."""

    at: float
    client: str
    ticket: int
    lock: str
    term: int


class ClaimStarted(NamedTuple):
    """A call began to claim the run of a job (`lock`) in this period of the client's own clock."""

    at: float
    client: str
    ticket: int
    lock: str
    number: int


class ClaimEnded(NamedTuple):
    """The claim ended. `ours`: this client runs the job now."""

    at: float
    client: str
    ticket: int
    lock: str
    number: int
    outcome: ClaimOutcome


class OnceCalled(NamedTuple):
    """A call of `once` with this key (`lock`) began. All calls with one key have the same options."""

    at: float
    client: str
    ticket: int
    lock: str
    repeats_crashes: bool  # after_crash="retry"
    repeats_errors: bool  # after_error="retry"


class RunStarted(NamedTuple):
    """The call begins to run the body of the key, under the lease with this ticket and fence."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    lease: int | None  # the ticket of the lease


class RunEnded(NamedTuple):
    """The body has ended. Its value is its ticket."""

    at: float
    client: str
    ticket: int
    lock: str
    outcome: Literal["returned", "raised"]


class OnceEnded(NamedTuple):
    """The call ended. `value` is the result of the recorded run: of this call (`ran`) or of another one (`done`)."""

    at: float
    client: str
    ticket: int
    lock: str
    outcome: OnceOutcome
    value: int | None = None


class RevokeStarted(NamedTuple):
    """A call began to request the revocation of the lease with this fence: it may receive the request from now on."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class RevokeEnded(NamedTuple):
    """The call returned: the server has the request."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class RevokeReceived(NamedTuple):
    """The lease received a revocation request."""

    at: float
    client: str
    ticket: int
    lock: str


# ── servers; recorded only by a simulator ────────────────────────────────────────────────────────────────────────


class ServerQueued(NamedTuple):
    """The server queued the ticket. A second event for the same ticket is a new position at the end of the queue.

    `position` orders tickets on the server. Without it the order of the events counts.
    """

    at: float
    client: str
    ticket: int
    lock: str
    position: int | None = None
    limit: int | None = 1
    exclusive: bool = True
    owner: str = ""


class ServerGranted(NamedTuple):
    """The server granted the ticket, whether it had to wait or not; the client may not know yet."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    position: int | None = None
    limit: int | None = 1
    exclusive: bool = True
    owner: str = ""


class ServerRemoved(NamedTuple):
    """The server removed the ticket, waiting or granted: released, withdrawn, expired or broken."""

    at: float
    client: str
    ticket: int
    lock: str
    reason: str = ""


class StateLost(NamedTuple):
    """The server lost state without a fault of the protocol; its guarantees define which promises this may break.

    data   stored data are lost: a restart without them, a failover to a replica that lags behind, a restored backup.
           `majority` is False if enough other servers still have them.
    lease  the lock's tickets ended early: evicted, broken by an operator, or the server's clock jumped forward.
    clock  the server's clock went back.
    """

    at: float
    kind: StateKind = "data"
    lock: str | None = None  # None: all locks
    majority: bool = True
    detail: str = ""
    restored: bool = False  # data: an operator restored an old copy


class Leftover(NamedTuple):
    """A ticket of this client on the server at the end, granted or waiting. All of these come before `End`."""

    at: float
    lock: str
    client: str
    granted: bool
    ticket: int | None = None  # if the server's entry can be attributed to one ticket


# ── the protected resource ───────────────────────────────────────────────────────────────────────────────────────


class Read(NamedTuple):
    """A holder read the resource named after its lock. After a fenced read, older fences are refused."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    value: Plain
    accepted: bool = True
    fenced: bool = True


class Wrote(NamedTuple):
    """A write reached the resource. `before` is the value that its writer had read, if the write depends on it.

    Not fenced: the resource accepts every write; anomalies are then reported as notes, not as violations.
    """

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    value: Plain
    accepted: bool = True
    before: Plain = None
    fenced: bool = True


# ── the world ────────────────────────────────────────────────────────────────────────────────────────────────────


class Paused(NamedTuple):
    """The process is paused; its beliefs last until their deadlines."""

    at: float
    client: str


class Resumed(NamedTuple):
    """The process runs again."""

    at: float
    client: str


class Crashed(NamedTuple):
    """The process died, and with it all its beliefs and calls."""

    at: float
    client: str
    reason: str = ""


class Restarted(NamedTuple):
    """A new process with the same name; it holds no lock."""

    at: float
    client: str


class Unreachable(NamedTuple):
    """No request of this client (None: of any client) gets an answer from now on: the server or network is down."""

    at: float
    client: str | None = None


class Reachable(NamedTuple):
    """Ends the Unreachable with the same `client`."""

    at: float
    client: str | None = None


class FaultStarted(NamedTuple):
    """A fault began; for reports. Both fields match it with its FaultEnded."""

    at: float
    name: str
    detail: str = ""


class FaultEnded(NamedTuple):
    """The fault ended."""

    at: float
    name: str
    detail: str = ""


class Healed(NamedTuple):
    """All faults have ended for good: from now on every call has to make progress."""

    at: float


class End(NamedTuple):
    """The last event: nothing was recorded after this time."""

    at: float


Event: TypeAlias = (
    AcquireStarted
    | Granted
    | Passed
    | TurnBegan
    | TurnExtended
    | TakenOver
    | MemberGranted
    | Reentered
    | AcquireFailed
    | Renewed
    | Checked
    | ReleaseStarted
    | ReleaseEnded
    | Lost
    | LossReported
    | Delivered
    | Elected
    | ClaimStarted
    | ClaimEnded
    | OnceCalled
    | RunStarted
    | RunEnded
    | OnceEnded
    | RevokeStarted
    | RevokeEnded
    | RevokeReceived
    | ServerQueued
    | ServerGranted
    | ServerRemoved
    | StateLost
    | Leftover
    | Read
    | Wrote
    | Paused
    | Resumed
    | Crashed
    | Restarted
    | Unreachable
    | Reachable
    | FaultStarted
    | FaultEnded
    | Healed
    | End
)
History: TypeAlias = list[Event]
EVENT_TYPES: tuple[Callable[..., Event], ...] = get_args(Event)


# ── stored as JSON lines ─────────────────────────────────────────────────────────────────────────────────────────


def to_lines(history: Iterable[Event]) -> Iterator[str]:
    """One JSON object per event, without line ends: the name, then the fields in order, without defaults.

    Equal histories give identical lines.

    >>> list(to_lines([Granted(1, "a", 7, "report", fence=3)]))
    ['{"event":"Granted","at":1.0,"client":"a","ticket":7,"lock":"report","fence":3}']
    """
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    for event in history:
        fields: dict[str, object] = {"event": type(event).__name__}
        defaults = event._field_defaults
        for field, value in zip(event._fields, event, strict=True):
            if field not in defaults or value != defaults[field]:
                fields[field] = float(value) if field in _SECONDS and value is not None else value
        yield encode(fields)


def from_lines(lines: Iterable[str]) -> History:
    """Parse the lines of `to_lines`; blank lines are skipped.

    Raises:
        ValueError: a line is not an event; the message has its number and the reason.
    """
    return [_event(number, line) for number, line in enumerate(lines, start=1) if not line.isspace() and line]


_SECONDS = {"at", "timeout", "deadline", "delay", "within"}  # written as floats, because 1 == 1.0
_NAMED: dict[str, Callable[..., Event]] = {kind.__name__: kind for kind in EVENT_TYPES}


def _event(number: int, line: str) -> Event:
    try:
        fields: dict[str, Any] = json.loads(line)
        return _NAMED[fields.pop("event")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"line {number} of the history is not an event ({error}): {line[:200]}") from error
