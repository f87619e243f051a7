"""The differences between two reads of the store. Pure: no store, no clock, no output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.monitor.status import ticket_as_dict

# holds      the lock already had this holder when it was found
# waits      a waiter has joined the queue
# left       a waiter has left the queue without the lock
# released   the lease has ended: released, broken or expired; two reads do not show which of these
ChangeKind = Literal["holds", "acquired", "released", "waits", "left", "unavailable", "available"]

_Client = tuple[str, int, str, str]
HolderKey = tuple[int | None, _Client, int]


class Change(NamedTuple):
    """One change."""

    at: float  # Unix time of the read that found it
    kind: ChangeKind
    lock: str = ""
    ticket: TicketInfo | None = None
    problem: str = ""  # why the store is unavailable

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        known: dict[str, Any] = {"time": self.at, "change": self.kind}
        if self.ticket is not None:
            known |= {"lock": self.lock, **ticket_as_dict(self.ticket)}
        if self.problem:
            known["problem"] = self.problem
        return known


def diff(
    old: Mapping[str, LockInfo], new: Mapping[str, LockInfo], at: float, *, is_complete: bool = True
) -> list[Change]:
    """Return all changes by lock, ends first.

    `is_complete` is False if `old` may lack locks that were in use. Then the holders of a lock that is not in `old` are
    reported as `holds`, because it is not known when they acquired it.
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        free = LockInfo(name, (), ())
        is_found = not is_complete and name not in old
        for kind, ticket in _of_lock(old.get(name, free), new.get(name, free)):
            changes.append(Change(at, "holds" if is_found and kind == "acquired" else kind, name, ticket))
    return changes


def by_key(holders: Iterable[TicketInfo]) -> dict[HolderKey, TicketInfo]:
    """Return the holders by a key that is the same at each read.

    The fence is not enough: callers with the same named owner hold a lock together with the same fence. The number at
    the end distinguishes two of them in the same thread or task.
    """
    numbers: Counter[tuple[int | None, _Client]] = Counter()
    keyed: dict[HolderKey, TicketInfo] = {}
    for holder in holders:
        fence, client = holder.fence, _client(holder)
        keyed[fence, client, numbers[fence, client]] = holder
        numbers[fence, client] += 1
    return keyed


def _of_lock(old: LockInfo, new: LockInfo) -> Iterator[tuple[ChangeKind, TicketInfo]]:
    had, has = by_key(old.holders), by_key(new.holders)
    acquired = [ticket for key, ticket in has.items() if key not in had]
    # A waiter has no fence, so it is identified by its thread or task, which usually waits for a lock only once.
    acquirers = Counter(map(_client, acquired))
    yield from (("released", ticket) for key, ticket in had.items() if key not in has)
    yield from (("left", ticket) for ticket in _missing(old.waiters, Counter(map(_client, new.waiters)) + acquirers))
    yield from (("acquired", ticket) for ticket in acquired)
    yield from (("waits", ticket) for ticket in _missing(new.waiters, Counter(map(_client, old.waiters))))


def _client(ticket: TicketInfo) -> _Client:
    return ticket.host, ticket.pid, ticket.agent, ticket.caller


def _missing(tickets: Iterable[TicketInfo], known: Counter[_Client]) -> Iterator[TicketInfo]:
    """Yield the tickets that have no counterpart in `known`."""
    unmatched = known.copy()
    for ticket in tickets:
        if unmatched[_client(ticket)] > 0:
            unmatched[_client(ticket)] -= 1
        else:
            yield ticket
