"""The state of a lock for operators, from the replies of several nodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.backends.redis.protocol.keys import REDLOCK
from holdfast.backends.redis.protocol.records import describe_ticket, fields_of, foreign_holder, number_in, pairs_of
from holdfast.core.tickets import LockInfo, TicketInfo

_UNKNOWN = b"\n\n0\n\n\n?\n"  # the line of a ticket whose own line was lost


class Line:
    """The line of one ticket in the record of a node; votes.lua describes the fields."""

    __slots__ = ("agent", "fence", "info", "nonce", "since")

    def __init__(self, line: bytes) -> None:
        # Any client may have written the line, so it may be malformed.
        self.nonce, fence, since, _, _, self.agent, self.info = fields_of(line, 7)
        self.fence = number_in(fence) if fence else None
        self.since = number_in(since) / 1e6

    def describe(self, remaining: float) -> TicketInfo:
        return describe_ticket(
            "x", info=self.info, fence=self.fence, agent=self.agent, since=self.since, remaining=remaining
        )


class NodeRecord:
    """The state of one lock on one node. `is_eligible`: its vote counts."""

    def __init__(self, reply: list[Any], *, is_eligible: bool) -> None:
        self._now, value, remaining_ms, lines, self._queue, leases = reply
        self.value: str = value.decode(errors="replace")
        self.remaining = math.inf if remaining_ms == -1 else remaining_ms / 1000
        self._lines = dict(pairs_of(lines))
        self._lapses = dict(pairs_of(leases))
        self.is_eligible = is_eligible

    @property
    def voted_for(self) -> Line | None:
        """The line of the ticket that has this node's vote."""
        nonce = self.value.removeprefix(REDLOCK).split(":")[0] if self.value.startswith(REDLOCK) else None
        line = Line(self._lines.get(b"holder", b""))
        return line if nonce is not None and line.nonce == nonce else None

    @property
    def is_foreign(self) -> bool:
        """Whether the key belongs to another program."""
        return bool(self.value) and not self.value.startswith(REDLOCK)

    def tickets(self) -> Iterator[tuple[bytes, TicketInfo]]:
        """The members of this node's queue and their tickets."""
        for member in self._queue:
            line = Line(self._lines.get(member.partition(b":")[2], _UNKNOWN))
            ticket = line.describe((float(self._lapses.get(member, 0)) - self._now) / 1000)
            if ticket.remaining:
                yield member, ticket


def describe(name: str, records: Sequence[NodeRecord], quorum: int, nodes: int) -> LockInfo:
    """The ticket with a majority and the waiters, from the replies of `inspect.lua`."""
    held = _holder(records, quorum, nodes)
    foreign = [record.remaining for record in records if record.is_foreign]
    holders: list[TicketInfo] = []
    if held is not None:
        holders = [held[0].describe(held[1])]
    elif len(foreign) >= quorum:
        holders = [foreign_holder(min(foreign))]
    waiters: dict[bytes, TicketInfo] = {}
    for record in records:
        for member, ticket in record.tickets():
            waiters.setdefault(member, ticket)
    return LockInfo(name, tuple(holders), tuple(sorted(waiters.values(), key=lambda ticket: ticket.since)))


def nonce_of_holder(records: Sequence[NodeRecord], quorum: int, nodes: int, fence: int) -> str | None:
    """The nonce of the ticket that has a majority, if it has this fence."""
    held = _holder(records, quorum, nodes)
    return held[0].nonce if held is not None and held[0].fence == fence else None


def _holder(records: Sequence[NodeRecord], quorum: int, nodes: int) -> tuple[Line, float] | None:
    """The line of the ticket with a majority, and the seconds until it loses it.

    Nodes that did not reply may have voted for it; of those that did, at least half must have.
    """
    votes: dict[str, list[tuple[Line, NodeRecord]]] = defaultdict(list)
    for record in records:
        line = record.voted_for
        if line is not None:
            votes[line.nonce].append((line, record))
    lines = max(votes.values(), key=len, default=[])
    if not lines or 2 * len(lines) < len(records) or len(lines) + nodes - len(records) < quorum:
        return None
    # The fence is the highest count among eligible votes. Lines on other nodes may show a lower one until the lease is
    # renewed, and lines on nodes that were not eligible a higher one.
    counting = [line for line, record in lines if record.is_eligible] or [line for line, _ in lines]
    line = max(counting, key=lambda line: line.fence or 0)
    remaining = sorted((record.remaining for _, record in lines), reverse=True)
    return line, remaining[min(quorum, len(remaining)) - 1]
