"""Format tickets: the terms that all commands use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.cli.text import escape

if TYPE_CHECKING:
    from holdfast.core.tickets import TicketInfo


def host_pid(ticket: TicketInfo) -> str:
    """Return `host/pid`, escaped."""
    return escape(str(ticket))


def fence_text(holder: TicketInfo) -> str:
    """The fence of a holder, or the range in which it is."""
    return str(holder.fence) if holder.last_fence is None else f"{holder.fence}-{holder.last_fence}"


def fences(tickets: Iterable[TicketInfo]) -> list[int]:
    """Return the fences of those tickets that have one."""
    return [ticket.fence for ticket in tickets if ticket.fence is not None]
