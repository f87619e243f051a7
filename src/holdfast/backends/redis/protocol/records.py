"""The state of a lock of `method=queue` for operators, read from the reply of `inspect.lua`."""

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
_UNKNOWN = b"\n\n0\n\n\n\n?\n"  # the line of a ticket whose own line was lost


@functools.lru_cache(maxsize=256)  # usually the same for all tickets of a thread
def line_suffix(channel: Channel, ttl_ms: int, agent: str, info: str, *, is_subscribed: bool) -> str:
    """The last fields of a ticket's line or entry. With a ttl, the ticket accepts a hand-over.

    A client that is not subscribed (not yet, or because it reconnects) cannot be handed the lock. That no connection
    receives a message for it does not mean that it is dead.
    """
    handed = (f" {ttl_ms}" if ttl_ms else "") if is_subscribed else "?"
    return f"{channel.verb}{handed}\n{channel.name}\n{agent.replace(chr(10), ' ')}\n{info}"


class Line:
    """The line of one ticket that holds the lock; layout.lua describes the fields."""

    __slots__ = ("agent", "fence", "info", "last_fence", "nonce", "since")

    def __init__(self, line: bytes) -> None:
        # Any client may have written the line, so it may be malformed.
        self.nonce, fence, since, kept, _, _, self.agent, self.info = fields_of(line, 8)
        self.fence = number_in(fence) if fence else None
        self.last_fence = number_in(kept.partition(" ")[2]) or None
        self.since = number_in(since) / 1e6

    def describe(self, kind: str, remaining: float) -> TicketInfo:
        ticket = describe_ticket(
            kind, info=self.info, fence=self.fence, agent=self.agent, since=self.since, remaining=remaining
        )
        return ticket if self.last_fence is None else ticket._replace(last_fence=self.last_fence)


class Record:
    """The state of one lock."""

    def __init__(self, reply: list[Any]) -> None:
        self._now, value, remaining_ms, sharers, self._shared, self._queue, waiters = reply
        self._value: bytes = value
        self._remaining = math.inf if remaining_ms == -1 else remaining_ms / 1000
        self._sharers = dict(pairs_of(sharers))
        self._waiters = dict(pairs_of(waiters))

    def holders(self) -> list[TicketInfo]:
        if self._value.startswith(SEVERAL.encode()):
            shared = [self._sharer(member, float(ends)) for member, ends in pairs_of(self._shared)]
            return sorted((ticket for ticket in shared if ticket.remaining), key=lambda ticket: ticket.fence or 0)
        if self._value.startswith(QUEUE.encode()):
            return [Line(self._value.removeprefix(QUEUE.encode())).describe("x", self._remaining)]
        return [foreign_holder(self._remaining)] if self._value else []

    def waiters(self) -> list[TicketInfo]:
        """The waiting tickets in queue order."""
        waiting = [self._waiter(self._waiters.get(nonce, b"")) for nonce in self._queue]
        return [ticket for ticket in waiting if ticket.remaining]

    def describe(self, name: str) -> LockInfo:
        return LockInfo(name, tuple(self.holders()), tuple(self.waiters()))

    def _sharer(self, member: bytes, ends: float) -> TicketInfo:
        kind, _, nonce = member.decode(errors="replace").partition(":")
        return Line(self._sharers.get(nonce.encode(), _UNKNOWN)).describe(kind, (ends - self._now) / 1000)

    def _waiter(self, entry: bytes) -> TicketInfo:
        kind, number, lapses, _, _, _, agent, info = fields_of(entry, 8)
        remaining = (number_in(lapses) - self._now) / 1000
        since = number_in(number) / 1e6
        kind = "x" if kind.startswith("@") else kind
        return describe_ticket(kind, info=info, fence=None, agent=agent, since=since, remaining=remaining)


def describe_ticket(
    kind: str, *, info: str, fence: int | None, agent: str, since: float, remaining: float
) -> TicketInfo:
    """A ticket of this kind: x, r, or a semaphore's limit."""
    return make_ticket_info(
        info=info,
        fence=fence,
        agent=agent,
        since=since,
        remaining=remaining,
        exclusive=kind == "x",
        limit=limit_of(kind),
    )


def foreign_holder(remaining: float) -> TicketInfo:
    """A holder that is another program. Its value is not shown, because it may be a secret."""
    return make_ticket_info(
        info="", fence=0, agent="another program", since=0.0, remaining=remaining, exclusive=True, limit=1
    )


def limit_of(kind: str) -> int | None:
    """The limit of a ticket of this kind: x, r, or a semaphore's limit."""
    if kind == "r":
        return None
    return 1 if kind == "x" else number_in(kind)


def fields_of(line: bytes, count: int) -> list[str]:
    """The fields of a line. The last one may contain line breaks. Missing fields are empty."""
    fields = line.decode(errors="replace").split("\n", count - 1)
    return fields + [""] * (count - len(fields))


def number_in(text: str) -> int:
    """0 for a malformed number."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0


def pairs_of(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
