"""What is different between two looks at the store. Pure: no store, no clock, no output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.cli.facts import ticket_as_dict
from holdfast.core.tickets import LockInfo, TicketInfo

# holds      at the first look somebody has the lock already
# waits      somebody stands in line; left: not any more, and did not get the lock
# released   the lease is over: from outside, a release, a break and a ttl that ran out look alike
What = Literal["holds", "acquired", "released", "waits", "left", "unavailable", "available"]


class Change(NamedTuple):
    """One line of the story."""

    at: float  # Unix time of the look that found it
    what: What
    lock: str = ""
    ticket: TicketInfo | None = None
    problem: str = ""  # unavailable: why

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        known: dict[str, Any] = {"time": self.at, "change": self.what}
        if self.ticket is not None:
            known |= {"lock": self.lock, **ticket_as_dict(self.ticket)}
        if self.problem:
            known["problem"] = self.problem
        return known


def between(before: Sequence[LockInfo] | None, after: Sequence[LockInfo], at: float) -> list[Change]:
    """All changes, lock by lock, what ended first. Without a `before`, all that is there."""
    old = {info.name: info for info in before or ()}
    new = {info.name: info for info in after}
    is_first = before is None
    found = []
    for name in sorted(old.keys() | new.keys()):
        free = LockInfo(name, (), ())
        for what, ticket in _of_lock(old.get(name, free), new.get(name, free)):
            found.append(Change(at, "holds" if is_first and what == "acquired" else what, name, ticket))
    return found


def _of_lock(old: LockInfo, new: LockInfo) -> Iterator[tuple[What, TicketInfo]]:
    had, has = _by_fence(old.holders), _by_fence(new.holders)
    acquired = [ticket for fence, ticket in has.items() if fence not in had]
    # A waiter has no fence yet. Who it is has to do: one thread waits for one lock once, as a rule.
    got_it = Counter(map(_who, acquired))
    yield from (("released", ticket) for fence, ticket in had.items() if fence not in has)
    yield from (("left", ticket) for ticket in _missing(old.waiters, Counter(map(_who, new.waiters)) + got_it))
    yield from (("acquired", ticket) for ticket in acquired)
    yield from (("waits", ticket) for ticket in _missing(new.waiters, Counter(map(_who, old.waiters))))


def _by_fence(holders: Iterable[TicketInfo]) -> dict[int | None, TicketInfo]:
    return {holder.fence: holder for holder in holders}


def _who(ticket: TicketInfo) -> tuple[str, int, str]:
    return ticket.host, ticket.pid, ticket.agent


def _missing(tickets: Iterable[TicketInfo], known: Counter[tuple[str, int, str]]) -> Iterator[TicketInfo]:
    """Those beyond what is known, each of which accounts for one."""
    left = known.copy()
    for ticket in tickets:
        if left[_who(ticket)] > 0:
            left[_who(ticket)] -= 1
        else:
            yield ticket
