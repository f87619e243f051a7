"""The state of a lock for operators, read from the reply of `inspect.lua`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.protocol.keys import QUEUE, SEVERAL
from holdfast.core.tickets import LockInfo, TicketInfo, make_ticket_info

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Channel

_DIGITS_MAX = 20  # of a fence or a time
_UNKNOWN = b"\n\n0\n\n\n?\n"  # the line of a ticket whose own line was lost


@functools.lru_cache(maxsize=256)  # usually the same for all tickets of a thread
def line_suffix(channel: Channel, ttl_ms: int, agent: str, info: str, *, is_subscribed: bool) -> str:
    """The last fields of a ticket's line. With a ttl, the ticket accepts a hand-over.

    A client that is not subscribed (not yet, or because it reconnects) cannot be handed the lock. That no connection
    receives a message for it does not mean that it is dead.
    """
    handed = (f" {ttl_ms}" if ttl_ms else "") if is_subscribed else "?"
    return f"{channel.verb}{handed}\n{channel.name}\n{agent.replace(chr(10), ' ')}\n{info}"


class Line:
    """The line of one ticket in the record; layout.lua describes the fields."""

    __slots__ = ("agent", "fence", "info", "nonce", "since")

    def __init__(self, line: bytes) -> None:
        fields = line.decode(errors="replace").split("\n", 6)
        # Any client may have written the line, so it may be malformed.
        self.nonce, fence, since, _, _, self.agent, self.info = fields + [""] * (7 - len(fields))
        self.fence = _number(fence) if fence else None
        self.since = _number(since) / 1e6

    def describe(self, kind: str, remaining: float) -> TicketInfo:
        return make_ticket_info(
            info=self.info,
            fence=self.fence,
            agent=self.agent,
            since=self.since,
            remaining=remaining,
            exclusive=kind == "x",
            limit=limit_of(kind),
        )


class Record:
    """The state of one lock on one server."""

    def __init__(self, reply: list[Any]) -> None:
        self._now, value, remaining_ms, lines, self._shared, self._queue, leases = reply
        self.value: str = value.decode(errors="replace")
        self.remaining = math.inf if remaining_ms == -1 else remaining_ms / 1000
        self._connections = dict(_pairs(lines))
        self._lapses = dict(_pairs(leases))

    @property
    def holder(self) -> Line | None:
        """The exclusive ticket that holds the lock or held it last."""
        line = self._connections.get(b"holder")
        return None if line is None else Line(line)

    def holders(self) -> list[TicketInfo]:
        if self.value.startswith(SEVERAL):
            shared = [self._ticket(member, float(ends)) for member, ends in _pairs(self._shared)]
            return sorted((ticket for ticket in shared if ticket.remaining), key=lambda ticket: ticket.fence or 0)
        holder = self.holder
        if holder is not None and self.value == QUEUE + holder.nonce:
            return [holder.describe("x", self.remaining)]
        return [foreign_holder(self.remaining)] if self.value else []

    def waiters(self) -> list[TicketInfo]:
        """The waiting tickets in queue order."""
        waiting = [self._ticket(member, float(self._lapses.get(member, 0))) for member in self._queue]
        return [ticket for ticket in waiting if ticket.remaining]

    def describe(self, name: str) -> LockInfo:
        return LockInfo(name, tuple(self.holders()), tuple(self.waiters()))

    def _ticket(self, member: bytes, ends: float) -> TicketInfo:
        kind, _, nonce = member.decode(errors="replace").partition(":")
        return Line(self._connections.get(nonce.encode(), _UNKNOWN)).describe(kind, (ends - self._now) / 1000)


def foreign_holder(remaining: float) -> TicketInfo:
    """A holder that is another program. Its value is not shown, because it may be a secret."""
    return make_ticket_info(
        info="", fence=0, agent="another program", since=0.0, remaining=remaining, exclusive=True, limit=1
    )


def limit_of(kind: str) -> int | None:
    """The limit of a ticket of this kind: x, r, or a semaphore's limit."""
    if kind == "r":
        return None
    return 1 if kind == "x" else _number(kind)


def _number(text: str) -> int:
    """0 for a malformed number."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
