"""Format tickets: the terms that all commands use."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.cli.text import display_name, escape
from holdfast.core.tickets import LockInfo, TicketInfo


def host_pid(ticket: TicketInfo) -> str:
    """Return `host/pid`, escaped."""
    return escape(str(ticket))


def fence_text(holder: TicketInfo) -> str:
    """The fence of a holder, or the range in which it is."""
    return str(holder.fence) if holder.last_fence is None else f"{holder.fence}-{holder.last_fence}"


def fences(tickets: Iterable[TicketInfo]) -> list[int]:
    """Return the fences of those tickets that have one, each once: the leases of a named owner have the same fence."""
    return list(dict.fromkeys(ticket.fence for ticket in tickets if ticket.fence is not None))


def no_target(info: LockInfo, fence: int | None, outcome: str) -> str:
    """Return the message for a request that no holder of the lock matches."""
    if not info.holders:
        waiting = f" ({len(info.waiters)} waiting)" if info.waiters else ""
        return f"{display_name(info.name)} has no holder{waiting}"
    held = ", ".join(map(str, fences(info.holders)))
    return f"{display_name(info.name)} is not held with fence {fence} (held fences: {held}): {outcome}"
