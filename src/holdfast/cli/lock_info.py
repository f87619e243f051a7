"""Format a LockInfo: the terms that all commands use, and the JSON objects."""

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
    """Return one of PRIMITIVES, derived from the tickets, and the limit of a semaphore.

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


def host_pid(ticket: TicketInfo) -> str:
    """Return `host/pid`, escaped."""
    return escape(str(ticket))


def fences(tickets: Iterable[TicketInfo]) -> list[int]:
    """Return the fences of those tickets that have one."""
    return [ticket.fence for ticket in tickets if ticket.fence is not None]


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
        "host": ticket.host,
        "pid": ticket.pid,
        "agent": ticket.agent,
        "program": ticket.program,
        "since": ticket.since or None,  # unknown if another program wrote the ticket
        "ttl_left": ticket.remaining if math.isfinite(ticket.remaining) else None,
        "exclusive": ticket.exclusive,
        "owner": ticket.owner or None,
        "revocable": ticket.revocable,
        "meta": dict(ticket.meta),
    }
