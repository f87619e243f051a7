"""Tickets, what a backend answers about them, and the one rule that decides who is in.

The rule: tickets of a lock are ordered; *a ticket is granted when fewer than `limit` tickets are ahead of it and none
of those is exclusive*. A mutex and a writer have limit 1 and are exclusive; a reader has no limit; a permit of a
semaphore of n has limit n. Nothing overtakes, so a writer behind readers keeps later readers out and is not starved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

WAITER_LEASE = 10.0  # seconds a waiting ticket lives without a look; every look renews it
WOKEN_LEASE = 1.0  # what a waiter keeps of that once it has been woken, so that a stopped one cannot hold up the rest
POLL_INTERVAL = 1.0  # the next in line looks at least this often, pushed or not
POLL_INTERVAL_BEHIND = WAITER_LEASE / 4  # the others, who are not next anyway


class Ticket(NamedTuple):
    """One attempt's place in a lock, waiting or granted. The nonce tells it from every other attempt."""

    name: str
    nonce: str
    ttl: float  # how long it lives on the server without renewal: the lease's, and the lock's delay after it
    limit: int | None
    exclusive: bool
    agent: str  # the thread or task
    info: str  # {"who": {host, pid, program}, "meta": …} as JSON, and what else others may know
    delay: float = 0.0  # the part of the ttl that nobody may be let in early, although the holder is known to be dead
    owner: str = ""  # those that name the same one are in together; only of exclusive tickets


class Granted(NamedTuple):
    """The ticket is in. Believe it until `deadline` on the local clock, no longer."""

    fence: int
    deadline: float
    store: Hashable = None  # which incarnation of the store granted it, where that can change under us


class Waiting(NamedTuple):
    """Somebody is in the way. Look again after this many seconds at the latest, pushed or not."""

    poll_after: float
    holder: str | None = None


class Live(NamedTuple):
    """Renewed: the lease runs until `deadline` on the local clock."""

    deadline: float


class LeaseGone(NamedTuple):
    """The server does not know this lease any more."""

    reason: str = "the server no longer knows this lease: it ran out or was broken"


class QueueEntry(Protocol):
    """What the rule needs to know of a ticket that is ahead."""

    @property
    def exclusive(self) -> bool: ...


P = TypeVar("P", bound=QueueEntry)


def first_blocker(limit: int | None, ahead: Iterable[P]) -> P | None:
    """The ticket ahead because of which one with this limit has to wait, or None: it may go in.

    `ahead` is read only as far as needed, so it may be a cursor over a long queue.
    """
    for count, place in enumerate(ahead, start=1):
        if place.exclusive or count == limit:
            return place
    return None


class TicketInfo(NamedTuple):
    """A holder or waiter as an operator sees it."""

    fence: int | None  # None while waiting; 0: held by a program that gives no fences
    host: str
    pid: int
    agent: str
    program: str
    since: float  # Unix time; 0 if nobody knows
    remaining: float  # seconds until the server lets go of it without a renewal; inf: it never will
    exclusive: bool
    limit: int | None
    meta: Mapping[str, Any]
    owner: str = ""  # the named owner, if the lock is held in one's name
    revocable: bool = False  # it listens to requests to let go

    def __str__(self) -> str:
        """Who it is, in the form that errors use: host/pid."""
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
    """What an operator sees of a ticket, from what a backend stores."""
    known, meta = describe(info)
    about = _parsed(info)
    return TicketInfo(
        fence=fence,
        host=str(known.get("host", "?")),
        pid=_whole(known.get("pid")),
        agent=agent,
        program=str(known.get("program", "?")),
        since=since,
        remaining=max(0.0, remaining),
        exclusive=exclusive,
        limit=limit,
        meta=meta,
        owner=str(about.get("owner", "")),
        revocable=about.get("revocable") is True,
    )


def describe(ticket_info: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two parts of a ticket's `info`: who, and the user's meta. Of foreign or damaged ones, what can be read."""
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
    """0 for what is no whole number."""
    return number if isinstance(number, int) else 0


def process_text(ticket_info: str) -> str:
    """host/pid, for messages."""
    known, _ = describe(ticket_info)
    return f"{known.get('host', '?')}/{known.get('pid', '?')}"


class LockInfo(NamedTuple):
    """Who has a lock and who waits for it, in order."""

    name: str
    holders: tuple[TicketInfo, ...]
    waiters: tuple[TicketInfo, ...]
