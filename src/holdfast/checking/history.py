"""Histories: what the clients of a lock believed and did, and what was done to them, as a list of plain events.

Events come in the order of `at`, seconds on one true clock that no client need know; at equal times the place in the
list decides. Whoever records (a simulator, `verify`) says only what happened; whether it may is for the checkers.

    from holdfast.checking import history as h
    events: h.History = [h.Asked(0.0, "a", 1, "report"), h.Granted(0.1, "a", 1, "report", fence=1), h.End(9.0)]

The life of one attempt to take a lock, known by its `ticket`, a number that is unique in the history:

    what its client sees     Asked ─┬─> Granted ── Renewed* ─┬─> Released ──> ReleaseEnded
                                    │     └── Checked*       └─> Lost ──> Told
                                    ├─> Reentered
                                    └─> GaveUp
    what its server does            Queued? ──> Admitted ──> Left       (optional: a real server does not tell us)

A belief is from `Granted` to the first of: Released, Lost, the deadline (which Renewed moves), a crash of its client.
`client` is what can be paused or can crash: a process. A call that takes several locks is several tickets with one
`group`, each Gathered when it is got and all Granted at one moment, or none. If the server's ticket has to be replaced
during one call (its answer came too late), the ticket in the history stays the same.

Events are tuples, so Paused(1.0, "a") == Resumed(1.0, "a"): compare histories by their lines, which name the types.

Not in here: judgement, clocks, I/O. An event type may get new fields with defaults at its end, never lose one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Plain: TypeAlias = int | str | None
WhyFailed = Literal["timed out", "unavailable", "unknown", "cancelled", "error"]
ReleaseOutcome = Literal["released", "lost", "owed"]
StateKind = Literal["data", "lease", "clock"]
ClaimOutcome = Literal["ours", "not ours", "unavailable", "unknown", "cancelled", "error"]


# ── what clients see ─────────────────────────────────────────────────────────────────────────────────────────────


class AcquireStarted(NamedTuple):
    """A call to acquire began. Limit and exclusive as in core/tickets.py: a mutex is 1 and exclusive."""

    at: float
    client: str
    ticket: int
    lock: str
    timeout: float | None = None
    limit: int | None = 1
    exclusive: bool = True
    group: int | None = None  # the same for all locks that one call takes at once, in the order in which it does
    owner: str = ""  # those that name the same one are in together, with one fence


class Granted(NamedTuple):
    """The call returned a lease: from now on the client believes that it holds.

    `deadline` is the true time at which the belief ends by the client's own clock, if that is known.
    """

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    deadline: float | None = None
    limit: int | None = 1
    exclusive: bool = True
    renews: bool = False  # it is renewed by itself, for as long as it is held
    group: int | None = None
    delay: float = 0.0  # after a loss nobody may be let in for so long
    owner: str = ""
    revocable: bool = False  # to requests to let go


class MemberGranted(NamedTuple):
    """The call got one of the locks that it takes at once. No belief yet: that begins when it has all of them."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class Reentered(NamedTuple):
    """The call returned a lease that the client had already, counted once more: no new belief, the same fence."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class AcquireFailed(NamedTuple):
    """The call ended without a lease. `timed out` says busy, `unavailable` and `unknown` that the server was silent."""

    at: float
    client: str
    ticket: int
    lock: str
    outcome: WhyFailed
    reason: str = ""


class Renewed(NamedTuple):
    """The belief now ends at another deadline (true time): renewed, or the client's clock runs at another rate."""

    at: float
    client: str
    ticket: int
    lock: str
    deadline: float


class Checked(NamedTuple):
    """The client looked at its lease (`held`, `check()`), and this is what it was told."""

    at: float
    client: str
    ticket: int
    lock: str
    held: bool


class ReleaseStarted(NamedTuple):
    """The call to release began (of a re-entered lease, the last one): the belief ends, whatever the server says."""

    at: float
    client: str
    ticket: int
    lock: str


class ReleaseEnded(NamedTuple):
    """The call to release came back: done, LockLost (it was not ours any more), or owed (no answer)."""

    at: float
    client: str
    ticket: int
    lock: str
    outcome: ReleaseOutcome = "released"


class Lost(NamedTuple):
    """The lease turned lost, by its own clock or because the server said so: the belief ends here at the latest."""

    at: float
    client: str
    ticket: int
    lock: str
    reason: str = ""


class LossReported(NamedTuple):
    """The user's own code was told of the loss. Record one way of telling (`on_lost`, say), each time it happens."""

    at: float
    client: str
    ticket: int
    lock: str


class Elected(NamedTuple):
    """The lease makes its client the leader, for this term, for as long as it is held."""

    at: float
    client: str
    ticket: int
    lock: str
    term: int


class ClaimStarted(NamedTuple):
    """A call began to claim the run of a job (`lock`) in the period with this number, by the client's own clock."""

    at: float
    client: str
    ticket: int
    lock: str
    number: int


class ClaimEnded(NamedTuple):
    """The call came to its end. `ours`: this client runs the job, now."""

    at: float
    client: str
    ticket: int
    lock: str
    number: int
    outcome: ClaimOutcome


class RevokeStarted(NamedTuple):
    """A call began to ask the lease with this fence to let go: from now on it may hear of it."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class RevokeEnded(NamedTuple):
    """The call came back: the server has the request."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int


class RevokeReceived(NamedTuple):
    """The lease was told that somebody asks for it."""

    at: float
    client: str
    ticket: int
    lock: str


# ── what servers do; only a simulator knows ──────────────────────────────────────────────────────────────────────


class ServerQueued(NamedTuple):
    """The server put the ticket in line, to wait. A second one for the same ticket is a new place at the back.

    `position` orders tickets on the server. Without it the order of the events counts, if they are the server's own.
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
    """The server let the ticket in, whether it had to wait or not; the client may not know yet."""

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
    """The server has the ticket no more, waiting or admitted: released, withdrawn, lapsed, broken."""

    at: float
    client: str
    ticket: int
    lock: str
    reason: str = ""


class StateLost(NamedTuple):
    """The server let go of what it had granted, by no fault of the protocol; guarantees say what that may break.

    data   what was stored is gone: restart without it, failover to a replica behind, restore. `majority` is False
           where enough other servers remember.
    lease  the lock's tickets went early: evicted, broken by an operator, the server's clock jumped ahead.
    clock  the server's clock went back.
    """

    at: float
    what: StateKind = "data"
    lock: str | None = None  # None: all of them
    majority: bool = True
    detail: str = ""
    restored: bool = False  # data: an operator put an old copy in their place


class Leftover(NamedTuple):
    """Found on the server at the end: a ticket of this client, holding or waiting. All before `End`."""

    at: float
    lock: str
    client: str
    granted: bool
    ticket: int | None = None  # where the server's entry can be told from others of this client


# ── the resource that the lock protects ──────────────────────────────────────────────────────────────────────────


class Read(NamedTuple):
    """A holder read the resource named after its lock. A fenced read counts as seen: older fences are refused then."""

    at: float
    client: str
    ticket: int
    lock: str
    fence: int
    value: Plain
    accepted: bool = True
    fenced: bool = True


class Wrote(NamedTuple):
    """A write reached the resource. `before` is what its writer had read, if it worked on that.

    Not fenced: the resource accepts whatever comes; anomalies are then reported as notes, not as violations.
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
    """The process stands still; its beliefs go on to their deadlines."""

    at: float
    client: str


class Resumed(NamedTuple):
    """It runs again."""

    at: float
    client: str


class Crashed(NamedTuple):
    """The process is gone, and with it all its beliefs and calls."""

    at: float
    client: str
    reason: str = ""


class Restarted(NamedTuple):
    """A new process under the same name; it holds nothing."""

    at: float
    client: str


class Unreachable(NamedTuple):
    """No request of this client (None: of any) can be answered from now on: server down, or the network between."""

    at: float
    client: str | None = None


class Reachable(NamedTuple):
    """The opposite of the CutOff with the same `client`."""

    at: float
    client: str | None = None


class FaultStarted(NamedTuple):
    """Something is being done to the world; for people to read, and to match with its FaultEnded by both fields."""

    at: float
    name: str
    detail: str = ""


class FaultEnded(NamedTuple):
    """That fault is over."""

    at: float
    name: str
    detail: str = ""


class Healed(NamedTuple):
    """No fault is at work and none will come: from now on there has to be progress."""

    at: float


class End(NamedTuple):
    """The last event: nothing was recorded after this moment."""

    at: float


Event: TypeAlias = (
    AcquireStarted
    | Granted
    | MemberGranted
    | Reentered
    | AcquireFailed
    | Renewed
    | Checked
    | ReleaseStarted
    | ReleaseEnded
    | Lost
    | LossReported
    | Elected
    | ClaimStarted
    | ClaimEnded
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
    """One JSON object a line, without line ends: the event's name, then its fields in order, defaults left out.

    Equal histories give equal lines, to the byte.

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
    """The history that `to_lines` wrote; blank lines are skipped.

    Raises:
        ValueError: a line is not an event; says which and why.
    """
    return [_event(number, line) for number, line in enumerate(lines, start=1) if not line.isspace() and line]


_SECONDS = {"at", "timeout", "deadline", "delay"}  # 1 and 1.0 are equal, so they must look alike
_NAMED: dict[str, Callable[..., Event]] = {kind.__name__: kind for kind in EVENT_TYPES}


def _event(number: int, line: str) -> Event:
    try:
        fields: dict[str, Any] = json.loads(line)
        return _NAMED[fields.pop("event")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"line {number} of the history is not an event ({error}): {line[:200]}") from error
