"""Tickets, the answers of a backend about them, and the rule that decides which tickets are granted.

The rule: the tickets of a lock are ordered. *A ticket is granted when fewer than `limit` tickets are queued before it
and none of those is exclusive.* A mutex and a writer have limit 1 and are exclusive; a reader has no limit; a permit of
a semaphore of n has limit n. No ticket overtakes another, so a writer that waits behind readers blocks later readers
and is not starved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

WAITER_LEASE = 10.0  # seconds that a waiting ticket lives without a poll; every poll renews it
WOKEN_LEASE = 1.0  # the same after the waiter was woken, so that a stopped waiter does not block the others
POLL_INTERVAL = 1.0  # seconds between polls of the first waiter, at most, notified or not
POLL_INTERVAL_BEHIND = WAITER_LEASE / 4  # the same for the waiters behind it


class Ticket(NamedTuple):
    """The entry of one attempt in the queue of a lock, waiting or granted. The nonce identifies the attempt."""

    name: str
    nonce: str
    ttl: float  # seconds that it lives on the server without renewal: the ttl of the lease and the delay of the lock
    limit: int | None
    exclusive: bool
    agent: str  # the thread or task
    info: str  # JSON for other clients: {"who": {host, pid, program}, "meta": …} and optional fields
    delay: float = 0.0  # the part of the ttl during which the lock stays taken even if the holder is known to be dead
    owner: str = ""  # exclusive tickets with the same named owner hold the lock together


class Granted(NamedTuple):
    """The ticket holds the lock, until `deadline` on the local clock at most."""

    fence: int
    deadline: float
    store: Hashable = None  # identifies the incarnation of the store, where a store can be replaced while it is used


class Waiting(NamedTuple):
    """Another ticket blocks this one. Poll again after this many seconds at the latest, notified or not."""

    poll_after: float
    holder: str | None = None


class Live(NamedTuple):
    """The lease was renewed until `deadline` on the local clock."""

    deadline: float


class LeaseGone(NamedTuple):
    """The lease does not exist on the server any more."""

    reason: str = "the server no longer knows this lease: it ran out or was broken"


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
    process, meta = describe(info)
    fields = _parsed(info)
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
    )


def describe(ticket_info: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The process and the user's meta from a ticket's `info`; empty if it is foreign or damaged."""
    info = _parsed(ticket_info)
    try:
        return dict(info["who"]), dict(info["meta"])
    except (ValueError, KeyError, TypeError):
        return {}, {}


def _parsed(ticket_info: str) -> dict[str, Any]:
    import json

    try:
        return dict(json.loads(ticket_info))
    except (ValueError, TypeError, RecursionError):
        return {}


def _whole(number: object) -> int:
    """The number, or 0 if it is not a whole number."""
    return number if isinstance(number, int) else 0


def process_text(ticket_info: str) -> str:
    """The process of a ticket as host/pid, for messages."""
    process, _ = describe(ticket_info)
    return f"{process.get('host', '?')}/{process.get('pid', '?')}"


class LockInfo(NamedTuple):
    """The holders and waiters of a lock, in order."""

    name: str
    holders: tuple[TicketInfo, ...]
    waiters: tuple[TicketInfo, ...]
