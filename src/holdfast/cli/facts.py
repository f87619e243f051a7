"""What is known of a lock, in the words that every command uses: for people and, as JSON, for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.cli.text import escape

if TYPE_CHECKING:
    from holdfast.core.tickets import LockInfo, TicketInfo

LOCK, READ_WRITE, SEMAPHORE = "lock", "read-write", "semaphore"
PRIMITIVES = (LOCK, READ_WRITE, SEMAPHORE)


def kind(info: LockInfo) -> tuple[str, int | None]:
    """One of PRIMITIVES, as far as its tickets tell, and a semaphore's limit.

    A writer's ticket is that of a plain lock. Only a reader, holding or waiting, shows that there are readers too.
    """
    for ticket in (*info.holders, *info.waiters):
        if not ticket.exclusive:
            return (READ_WRITE, None) if ticket.limit is None else (SEMAPHORE, ticket.limit)
    return LOCK, None


def kind_words(info: LockInfo) -> str:
    """The same for a person: `semaphore 3`."""
    word, limit = kind(info)
    return word if limit is None else f"{word} {limit}"


def role(ticket: TicketInfo, info: LockInfo, otherwise: str) -> str:
    """Reader or writer where there are both; else `otherwise`."""
    if kind(info)[0] != READ_WRITE:
        return otherwise
    return "writer" if ticket.exclusive else "reader"


def who(ticket: TicketInfo) -> str:
    """host/pid."""
    return escape(str(ticket))


def fences(tickets: Iterable[TicketInfo]) -> list[int]:
    """Those of the holders among them."""
    return [ticket.fence for ticket in tickets if ticket.fence is not None]


def lock_as_dict(info: LockInfo) -> dict[str, Any]:
    """For JSON."""
    word, limit = kind(info)
    return {
        "lock": info.name,
        "kind": word,
        "limit": limit,
        "holders": [ticket_as_dict(holder) for holder in info.holders],
        "waiters": [ticket_as_dict(waiter) for waiter in info.waiters],
    }


def ticket_as_dict(ticket: TicketInfo) -> dict[str, Any]:
    """For JSON."""
    return {
        "fence": ticket.fence,
        "host": ticket.host,
        "pid": ticket.pid,
        "agent": ticket.agent,
        "program": ticket.program,
        "since": ticket.since or None,  # another program does not say
        "ttl_left": ticket.remaining if math.isfinite(ticket.remaining) else None,
        "exclusive": ticket.exclusive,
        "owner": ticket.owner or None,
        "revocable": ticket.revocable,
        "meta": dict(ticket.meta),
    }
