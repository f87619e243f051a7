"""The differences between two reads of the store. Pure: no store, no clock, no output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.cli.lock_info import ticket_as_dict
from holdfast.core.tickets import LockInfo, TicketInfo

# holds      the lock already had this holder at the first read
# waits      a waiter has joined the queue
# left       a waiter has left the queue without the lock
# released   the lease has ended: released, broken or expired, which cannot be told apart from outside
ChangeKind = Literal["holds", "acquired", "released", "waits", "left", "unavailable", "available"]


class Change(NamedTuple):
    """One change."""

    at: float  # Unix time of the read that found it
    what: ChangeKind
    lock: str = ""
    ticket: TicketInfo | None = None
    problem: str = ""  # why the store is unavailable

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        known: dict[str, Any] = {"time": self.at, "change": self.what}
        if self.ticket is not None:
            known |= {"lock": self.lock, **ticket_as_dict(self.ticket)}
        if self.problem:
            known["problem"] = self.problem
        return known


def diff(before: Sequence[LockInfo] | None, after: Sequence[LockInfo], at: float) -> list[Change]:
    """Return all changes by lock, ends first. Without `before`, return the current holders and waiters."""
    old = {info.name: info for info in before or ()}
    new = {info.name: info for info in after}
    is_first = before is None
    changes = []
    for name in sorted(old.keys() | new.keys()):
        free = LockInfo(name, (), ())
        for what, ticket in _of_lock(old.get(name, free), new.get(name, free)):
            changes.append(Change(at, "holds" if is_first and what == "acquired" else what, name, ticket))
    return changes


def _of_lock(old: LockInfo, new: LockInfo) -> Iterator[tuple[ChangeKind, TicketInfo]]:
    had, has = _by_fence(old.holders), _by_fence(new.holders)
    acquired = [ticket for fence, ticket in has.items() if fence not in had]
    # A waiter has no fence, so it is identified by its thread or task, which usually waits for a lock only once.
    acquirers = Counter(map(_client, acquired))
    yield from (("released", ticket) for fence, ticket in had.items() if fence not in has)
    yield from (("left", ticket) for ticket in _missing(old.waiters, Counter(map(_client, new.waiters)) + acquirers))
    yield from (("acquired", ticket) for ticket in acquired)
    yield from (("waits", ticket) for ticket in _missing(new.waiters, Counter(map(_client, old.waiters))))


def _by_fence(holders: Iterable[TicketInfo]) -> dict[int | None, TicketInfo]:
    return {holder.fence: holder for holder in holders}


def _client(ticket: TicketInfo) -> tuple[str, int, str]:
    return ticket.host, ticket.pid, ticket.agent


def _missing(tickets: Iterable[TicketInfo], known: Counter[tuple[str, int, str]]) -> Iterator[TicketInfo]:
    """Yield the tickets that `known` does not account for."""
    left = known.copy()
    for ticket in tickets:
        if left[_client(ticket)] > 0:
            left[_client(ticket)] -= 1
        else:
            yield ticket
