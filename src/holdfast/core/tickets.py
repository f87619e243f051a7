"""Claims and tickets, the answers of a backend about them, and the rule that decides which tickets are granted.

The rule: the tickets of a lock are ordered. *A ticket is granted when fewer than `limit` tickets are queued before it
and none of those is exclusive.* A mutex and a writer have limit 1 and are exclusive; a reader has no limit; a permit of
a semaphore of n has limit n. No ticket overtakes another, so a writer that waits behind readers blocks later readers
and is not starved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.core.events import Attempt
    from holdfast.core.ports import Event
    from holdfast.core.straight_path import StraightPath

WAITER_LEASE = 10.0  # seconds that a waiting ticket lives without a poll; every poll renews it
WOKEN_LEASE = 1.0  # the same after the waiter was woken, so that a stopped waiter does not block the others
POLL_INTERVAL = 1.0  # seconds between polls of the first waiter, at most, notified or not
POLL_INTERVAL_BEHIND = WAITER_LEASE / 4  # the same for the waiters behind it


class Claim:
    """One attempt to acquire a lock: its ticket, and the state of the attempt as far as this client knows it.

    The ticket is the entry in the queue of the lock on the server, waiting or granted. The nonce identifies the
    attempt. The fields of a ticket never change, with two exceptions: the ttl of a granted ticket changes while no
    renewal is in flight, and a ticket that another local caller takes over loses the name of its caller
    (core/local_handover.py).
    """

    # Defaults of the class, because most attempts are granted at once and never set these.
    unanswered = False  # a request has no answer, and the server may still execute it
    queued = False  # the ticket is in the queue on the server
    withdrawn = False  # a release was sent, and has no answer
    unanswered_ttl = float("inf")  # the shortest ttl in renewals without an answer, which may still be executed
    min_hold = 0.0  # seconds for which the ticket stays granted at least, also after the end of its process
    kept_until = 0.0  # the end of min_hold on the local clock, once a caller has the lease
    is_final = False  # the next renewal is the last one: the ticket stays until its ttl is over, and is forgotten here
    state: Any = None  # the backend's own
    event: Event | None = None  # is set by a notification; only while the claim waits
    notification: Notification | None = None  # arrived, and not used yet
    subscription = 0  # the number of the subscription that existed before the last poll
    channel: Any = None  # subscribed to, in the backend's own form
    attempt: Attempt | None = None  # only while there are subscribers to events
    number = 0  # with `detect_deadlocks`: of the attempt
    path: StraightPath | None = None  # the straight path that the attempt used; its release uses it too
    # For a local hand-over (core/local_handover.py):
    passable = False  # the lease may be passed on to another caller of this client, or come from one
    server: Claim | None = None  # the ticket of another caller that stands for this one on the server; None: its own
    passed: Granted | None = None  # the lease that was passed on to this ticket
    is_answered = False  # it has waited, so the engine will release it
    is_granted = False  # it is granted: by the server, or by a pass
    is_passed_on = False  # another caller has its lease, and releases the ticket on the server
    was_blocked = False  # the server did not grant it at its first request
    waiting = 0  # how many other callers of this client wait for its turn
    reserved = 0  # how many fences after that of its lease the hand-over has reserved for those callers

    def __init__(  # noqa: PLR0917 - positional, because every acquire makes one
        self,
        name: str,
        nonce: str,
        ttl: float,
        limit: int | None,
        exclusive: bool,  # noqa: FBT001
        agent: str,
        info: str,
        delay: float = 0.0,
        owner: str = "",
    ) -> None:
        self.name = name
        self.nonce = nonce
        self.ttl = ttl  # seconds that the ticket lives without renewal: the ttl of the lease and the delay of the lock
        self.limit = limit
        self.exclusive = exclusive
        self.agent = agent  # the thread or task
        self.info = info  # JSON for other clients: {"who": {host, pid, program}, "caller": …, "meta": …} and options
        self.delay = delay  # the part of the ttl during which the lock stays taken even after a known loss
        self.owner = owner  # exclusive tickets with the same named owner hold the lock together


def may_have_happened(error: BaseException) -> bool:
    """Whether a request that ended with this error may have been executed, or may be executed later.

    Only a refusal proves that it was not. A cancellation or an interrupt proves nothing.
    """
    return isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError)


def note_unanswered(claims: Iterable[Claim], error: BaseException) -> None:
    if may_have_happened(error):
        for claim in claims:
            claim.unanswered = True


class Notification(NamedTuple):
    """The server wakes a waiting ticket. With a fence, the ticket was granted."""

    nonce: str
    fence: int = 0
    reserved: int = 0  # how many fences after that one are reserved for callers of the client


class Granted(NamedTuple):
    """The ticket holds the lock, until `deadline` on the local clock at most."""

    fence: int
    deadline: float
    store: Hashable = None  # identifies the incarnation of the store, where a store can be replaced while it is used


# Makes a Granted of a tuple with all fields. It saves a Python frame, which every acquire would need.
granted_of: Callable[[tuple[int, float, Hashable]], Granted] = functools.partial(tuple.__new__, Granted)


class Waiting(NamedTuple):
    """Another ticket blocks this one. Poll again after this many seconds at the latest, notified or not."""

    poll_after: float
    holder: str | None = None


class Live(NamedTuple):
    """The lease was renewed until `deadline` on the local clock."""

    deadline: float


class LeaseGone(NamedTuple):
    """The lease does not exist on the server any more."""

    reason: str = "the server no longer knows this lease: it ran out or was broken, or the server lost its data"


class QueueEntry(Protocol):
    """The part of a ticket in the queue that the rule depends on."""

    @property
    def exclusive(self) -> bool: ...


P = TypeVar("P", bound=QueueEntry)


def first_blocker(limit: int | None, ahead: Iterable[P]) -> P | None:
    """The ticket that blocks a ticket with this limit behind the tickets `ahead`; None if it is granted.

    `ahead` is read only as far as needed, so it may be a cursor over a long queue.
    """
    for count, entry in enumerate(ahead, start=1):
        if entry.exclusive or count == limit:
            return entry
    return None


class TicketInfo(NamedTuple):
    """A holder or waiter, for operators."""

    fence: int | None  # None while waiting; 0: held by a program that gives no fences
    host: str
    pid: int
    agent: str
    program: str
    since: float  # Unix time; 0 if unknown
    remaining: float  # seconds until it expires on the server without a renewal; inf: it does not expire
    exclusive: bool
    limit: int | None
    meta: Mapping[str, Any]
    owner: str = ""  # the named owner, if the lock was requested with `owner=`
    revocable: bool = False  # it polls for requests to release
    caller: str = ""  # identifies the thread or task that requested it, on all hosts; "" if unknown
    detached: bool = False  # it was requested in a task of its own, so its caller may go on while it waits
    attempt: int = 0  # with `detect_deadlocks`: the number of the attempt, greater for a later one of the same caller
    trace: str = ""  # the W3C `traceparent` of its caller, if the client has holdfast.otel with `propagate=True`
    holds: Mapping[str, int] | None = None  # the same: held by the caller; the number of the attempt, else the fence
    last_fence: int | None = None  # callers of this client pass the lease on: one of `fence` to this one is in use

    def __str__(self) -> str:
        """The process, in the form that errors use: host/pid."""
        return "another program" if self.fence == 0 else f"{self.host}/{self.pid}"


def make_ticket_info(
    *,
    info: str,
    fence: int | None,
    agent: str,
    since: float,
    remaining: float,
    exclusive: bool,
    limit: int | None,
) -> TicketInfo:
    """A ticket for operators, from the fields that a backend stores."""
    fields = _parsed(info)
    process, meta = _process_and_meta(fields)
    fences = _whole(fields.get("fences"))  # reserved for callers of its client
    return TicketInfo(
        fence=fence,
        host=str(process.get("host", "?")),
        pid=_whole(process.get("pid")),
        agent=agent,
        program=str(process.get("program", "?")),
        since=since,
        remaining=max(0.0, remaining),
        exclusive=exclusive,
        limit=limit,
        meta=meta,
        owner=str(fields.get("owner", "")),
        revocable=fields.get("revocable") is True,
        caller=str(fields.get("caller", "")),
        detached=fields.get("detached") is True,
        attempt=_whole(fields.get("attempt")),
        trace=str(fields.get("trace", "")),
        holds=_holds(fields.get("holds")),
        last_fence=fence + fences - 1 if fence and fences > 1 else None,
    )


def _parsed(ticket_info: str) -> dict[str, Any]:
    """The fields of a ticket's `info`; empty if it is of another program, or damaged."""
    import json

    try:
        return dict(json.loads(ticket_info))
    except (ValueError, TypeError, RecursionError):
        return {}


def _process_and_meta(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The process and the user's meta; empty if one of them is missing."""
    try:
        return dict(fields["who"]), dict(fields["meta"])
    except (ValueError, KeyError, TypeError):
        return {}, {}


def _whole(number: object) -> int:
    """The number, or 0 if it is not a whole number."""
    return number if isinstance(number, int) else 0


def _holds(leases: object) -> dict[str, int] | None:
    """The locks that a caller held, or None if they were not stored."""
    if not isinstance(leases, dict):
        return None
    return {str(name): number for name, number in leases.items() if isinstance(number, int)}


def process_text(ticket_info: str) -> str:
    """The process of a ticket as host/pid, for messages."""
    process, _ = _process_and_meta(_parsed(ticket_info))
    return f"{process.get('host', '?')}/{process.get('pid', '?')}"


class LockInfo(NamedTuple):
    """The holders and waiters of a lock, in order."""

    name: str
    holders: tuple[TicketInfo, ...]
    waiters: tuple[TicketInfo, ...]
