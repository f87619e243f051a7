"""What the nodes together know of a lock, read for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.backends.redis.protocol.keys import REDLOCK
from holdfast.backends.redis.protocol.records import Line, Record, foreign_holder
from holdfast.core.tickets import LockInfo, TicketInfo


class NodeRecord(Record):
    """One node's answer about one lock. `is_eligible`: its votes are worth something."""

    def __init__(self, reply: list[Any], *, counts: bool) -> None:
        super().__init__(reply)
        self.is_eligible = counts

    @property
    def voted_for(self) -> Line | None:
        """The ticket that has this node's vote."""
        nonce = self.value.removeprefix(REDLOCK).split(":")[0] if self.value.startswith(REDLOCK) else None
        line = self.holder
        return line if line is not None and line.nonce == nonce else None

    @property
    def is_elsewhere(self) -> bool:
        """Another program has the key."""
        return bool(self.value) and not self.value.startswith(REDLOCK)

    def tickets(self) -> Iterator[tuple[bytes, TicketInfo]]:
        """Who waits here, each with what tells it from all others."""
        for member in self._queue:
            ticket = self._ticket(member, float(self._lapses.get(member, 0)))
            if ticket.remaining:
                yield member, ticket


def describe(name: str, ballots: Sequence[NodeRecord], quorum: int, nodes: int) -> LockInfo:
    """Who has a majority, and who waits, from what `inspect.lua` answered on those of the nodes that did."""
    found = _holder(ballots, quorum, nodes)
    elsewhere = [ballot.remaining for ballot in ballots if ballot.is_elsewhere]
    holders: list[TicketInfo] = []
    if found is not None:
        holders = [found[0].describe("x", found[1])]
    elif len(elsewhere) >= quorum:
        holders = [foreign_holder(min(elsewhere))]
    waiters: dict[bytes, TicketInfo] = {}
    for ballot in ballots:
        for member, ticket in ballot.tickets():
            waiters.setdefault(member, ticket)
    return LockInfo(name, tuple(holders), tuple(sorted(waiters.values(), key=lambda one: one.since)))


def nonce_of_holder(ballots: Sequence[NodeRecord], quorum: int, nodes: int, fence: int) -> str | None:
    """The ticket that has a majority, if its fence is that one."""
    found = _holder(ballots, quorum, nodes)
    return found[0].nonce if found is not None and found[0].fence == fence else None


def _holder(ballots: Sequence[NodeRecord], quorum: int, nodes: int) -> tuple[Line, float] | None:
    """With its fence, and the time until it has no majority any more.

    Nodes that did not answer may have voted for it; of those that did, at least half must have.
    """
    votes: dict[str, list[tuple[Line, NodeRecord]]] = defaultdict(list)
    for ballot in ballots:
        line = ballot.voted_for
        if line is not None:
            votes[line.nonce].append((line, ballot))
    lines = max(votes.values(), key=len, default=[])
    if not lines or 2 * len(lines) < len(ballots) or len(lines) + nodes - len(ballots) < quorum:
        return None
    # The fence is the highest count that came with votes that counted; the others' lines may show less until the lease
    # is renewed, and those of nodes that did not count more.
    counting = [line for line, ballot in lines if ballot.is_eligible] or [line for line, _ in lines]
    line = max(counting, key=lambda one: one.fence or 0)
    remaining = sorted((ballot.remaining for _, ballot in lines), reverse=True)
    return line, remaining[min(quorum, len(remaining)) - 1]
