"""The state of one lock for operators, derived from its tickets, and its JSON object. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.tickets import LockInfo, TicketInfo

LOCK, READ_WRITE, SEMAPHORE = "lock", "read-write", "semaphore"


class Holding(NamedTuple):
    """A lease, as far as a monitor has seen it."""

    ticket: TicketInfo  # as of the last read
    ttl: float  # the largest ttl left that was seen: the ttl of the lease, after one renewal at the latest
    seen_from: float  # Unix time of the first read that found it; ticket.since may be earlier
    seen_until: float  # Unix time of the last read that found it
    is_over: bool = False  # released, broken or expired


class LockStatus(NamedTuple):
    """A lock in use, at the time of a read."""

    info: LockInfo
    holdings: tuple[Holding, ...]  # one for each ticket in info.holders, in the same order
    kind: str  # LOCK, READ_WRITE or SEMAPHORE
    limit: int | None  # of a semaphore
    held_for: float  # seconds that the oldest lease has lasted; 0 if there is none, or if its age is unknown
    ttl_left: float  # of the lease that expires first; inf if none expires
    ttl: float  # the ttl of that lease, as far as it is known
    longest_wait: float  # seconds; 0 if there is no waiter, or if its age is unknown

    @property
    def name(self) -> str:
        """The name of the lock. Any client chooses it: escape it for the screen."""
        return self.info.name

    @property
    def kind_text(self) -> str:
        """The kind as text: `semaphore 3`."""
        return kind_text(self.info)

    @property
    def holders(self) -> tuple[TicketInfo, ...]:
        """The tickets that hold the lock."""
        return self.info.holders

    @property
    def waiters(self) -> tuple[TicketInfo, ...]:
        """The queue, the first waiter first."""
        return self.info.waiters


def lock_status(info: LockInfo, holdings: Sequence[Holding], at: float) -> LockStatus:
    """Return the status at this Unix time."""
    word, limit = kind(info)
    expires_first = min(holdings, key=lambda holding: holding.ticket.remaining, default=None)
    return LockStatus(
        info=info,
        holdings=tuple(holdings),
        kind=word,
        limit=limit,
        held_for=_longest(info.holders, at),
        ttl_left=expires_first.ticket.remaining if expires_first else math.inf,
        ttl=expires_first.ttl if expires_first else math.inf,
        longest_wait=_longest(info.waiters, at),
    )


def age(since: float, now: float) -> float:
    """Return the seconds since a Unix time of another machine, whose clock may be ahead of ours. inf means unknown."""
    return max(0.0, now - since) if since else math.inf


def kind(info: LockInfo) -> tuple[str, int | None]:
    """Return LOCK, READ_WRITE or SEMAPHORE, derived from the tickets, and the limit of a semaphore.

    The ticket of a writer is equal to that of a plain lock. Only the ticket of a reader shows a read-write lock.
    """
    for ticket in (*info.holders, *info.waiters):
        if not ticket.exclusive:
            return (READ_WRITE, None) if ticket.limit is None else (SEMAPHORE, ticket.limit)
    return LOCK, None


def kind_text(info: LockInfo) -> str:
    """Return the kind as text: `semaphore 3`."""
    word, limit = kind(info)
    return word if limit is None else f"{word} {limit}"


def role(ticket: TicketInfo, info: LockInfo, otherwise: str) -> str:
    """Return "reader" or "writer" for a read-write lock, else `otherwise`."""
    if kind(info)[0] != READ_WRITE:
        return otherwise
    return "writer" if ticket.exclusive else "reader"


def lock_as_dict(info: LockInfo) -> dict[str, Any]:
    """Return the JSON object."""
    word, limit = kind(info)
    return {
        "lock": info.name,
        "kind": word,
        "limit": limit,
        "holders": [ticket_as_dict(holder) for holder in info.holders],
        "waiters": [ticket_as_dict(waiter) for waiter in info.waiters],
    }


def ticket_as_dict(ticket: TicketInfo) -> dict[str, Any]:
    """Return the JSON object."""
    return {
        "fence": ticket.fence,
        **({"last_fence": ticket.last_fence} if ticket.last_fence is not None else {}),
        "host": ticket.host,
        "pid": ticket.pid,
        "agent": ticket.agent,
        "caller": ticket.caller or None,
        "program": ticket.program,
        "since": ticket.since or None,  # unknown if another program wrote the ticket
        "ttl_left": ticket.remaining if math.isfinite(ticket.remaining) else None,
        "exclusive": ticket.exclusive,
        "owner": ticket.owner or None,
        "revocable": ticket.revocable,
        "meta": dict(ticket.meta),
    }


def _longest(tickets: Iterable[TicketInfo], at: float) -> float:
    return max((age(ticket.since, at) for ticket in tickets if ticket.since), default=0.0)
