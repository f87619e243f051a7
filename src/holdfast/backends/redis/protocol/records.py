"""The state of a lock of `method=queue` for operators, read from the reply of `inspect.lua`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
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

    A client that is not subscribed (not yet, or because it reconnects) cannot be handed the lock. It may be alive
    although no connection receives a message for it.
    """
    mark = (f" {ttl_ms}" if ttl_ms else "") if is_subscribed else "?"
    return f"{channel.verb}{mark}\n{channel.name}\n{agent.replace(chr(10), ' ')}\n{info}"


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


def describe(name: str, reply: list[Any]) -> LockInfo:
    """The holders of one lock, and its waiters in queue order."""
    now, value, remaining_ms, sharers, shared, queue, waiters = reply
    remaining = math.inf if remaining_ms == -1 else remaining_ms / 1000
    holders: list[TicketInfo] = []
    if value.startswith(SEVERAL.encode()):
        lines = dict(pairs_of(sharers))
        tickets = [_sharer(member, lines, (float(ends) - now) / 1000) for member, ends in pairs_of(shared)]
        holders = sorted((ticket for ticket in tickets if ticket.remaining), key=lambda ticket: ticket.fence or 0)
    elif value.startswith(QUEUE.encode()):
        holders = [Line(value.removeprefix(QUEUE.encode())).describe("x", remaining)]
    elif value:
        holders = [foreign_holder(remaining)]
    entries = dict(pairs_of(waiters))
    waiting = [_waiter(entries.get(nonce, b""), now) for nonce in queue]
    return LockInfo(name, tuple(holders), tuple(ticket for ticket in waiting if ticket.remaining))


def _sharer(member: bytes, lines: Mapping[bytes, bytes], remaining: float) -> TicketInfo:
    kind, _, nonce = member.decode(errors="replace").partition(":")
    return Line(lines.get(nonce.encode(), _UNKNOWN)).describe(kind, remaining)


def _waiter(entry: bytes, now: float) -> TicketInfo:
    kind, number, lapses, _, _, _, agent, info = fields_of(entry, 8)
    remaining = (number_in(lapses) - now) / 1000
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
