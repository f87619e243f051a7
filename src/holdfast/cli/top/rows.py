"""The table of `holdfast top`: columns, order, filter, and the bar of the ttl. Pure: no Textual, no store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.cli.tables import Column
from holdfast.cli.text import display_name
from holdfast.cli.times import short
from holdfast.core.tickets import TicketInfo
from holdfast.monitor import LockStatus, Snapshot
from holdfast.monitor.status import age

_BAR = 6  # characters
_EIGHTHS = " ▏▎▍▌▋▊▉"
# A lease is renewed every third of its ttl, so the share that is left is normally more than two thirds.
_LATE, _CRITICAL = 0.6, 1 / 3


class TableColumn(NamedTuple):
    """A column, its cells, and the order of locks when the table is sorted by it."""

    layout: Column
    cell: Callable[[LockStatus, float], str]
    sort_key: Callable[[LockStatus], Any]
    largest_first: bool = False


def _first_holder(lock: LockStatus) -> str:
    if not lock.holders:
        return "(none)"
    more = f" +{len(lock.holders) - 1}" if len(lock.holders) > 1 else ""
    return f"{lock.holders[0]}{more}"


def _program(lock: LockStatus) -> str:
    return lock.holders[0].program if lock.holders else ""


def _fence(lock: LockStatus) -> int:
    return lock.holders[0].fence or 0 if lock.holders else 0


def _longest(tickets: Sequence[TicketInfo], at: float) -> str:
    return short(max(age(ticket.since, at) for ticket in tickets)) if tickets else ""


COLUMNS = {
    "lock": TableColumn(
        Column("lock", flexible=True, min_width=20), lambda lock, _: display_name(lock.name), lambda lock: lock.name
    ),
    "kind": TableColumn(
        Column("kind", drop_order=3), lambda lock, _: lock.kind_text, lambda lock: (lock.kind, lock.limit or 0)
    ),
    "holder": TableColumn(Column("holder", flexible=True), lambda lock, _: _first_holder(lock), _first_holder),
    "program": TableColumn(Column("program", flexible=True, drop_order=1), lambda lock, _: _program(lock), _program),
    "fence": TableColumn(
        Column("fence", align_right=True, drop_order=2),
        lambda lock, _: str(_fence(lock)) if lock.holders else "",
        _fence,
        largest_first=True,
    ),
    "held": TableColumn(
        Column("held", align_right=True, drop_order=5),
        lambda lock, at: _longest(lock.holders, at),
        lambda lock: lock.held_for,
        largest_first=True,
    ),
    "ttl left": TableColumn(
        Column("ttl left", drop_order=4),
        lambda lock, _: ttl_bar(lock.ttl_left, lock.ttl) if lock.holders else "",
        lambda lock: lock.ttl_left,
    ),
    "waiters": TableColumn(
        Column("waiters", align_right=True),
        lambda lock, _: str(len(lock.waiters)),
        lambda lock: len(lock.waiters),
        largest_first=True,
    ),
    "longest wait": TableColumn(
        Column("wait", align_right=True),
        lambda lock, at: _longest(lock.waiters, at),
        lambda lock: lock.longest_wait,
        largest_first=True,
    ),
}
SORT_DEFAULT = "longest wait"


class Order(NamedTuple):
    """The column that locks are sorted by. Equal locks keep the order of the monitor: the longest wait first."""

    column: str = SORT_DEFAULT
    is_reversed: bool = False

    def next(self) -> Order:
        """Return the order by the next column."""
        names = list(COLUMNS)
        return Order(names[(names.index(self.column) + 1) % len(names)])

    def is_descending(self) -> bool:
        """Whether the largest value comes first."""
        return COLUMNS[self.column].largest_first != self.is_reversed

    def sort(self, locks: Sequence[LockStatus]) -> list[LockStatus]:
        return sorted(locks, key=COLUMNS[self.column].sort_key, reverse=self.is_descending())


def headings(order: Order) -> list[Column]:
    """Return the columns; an arrow marks the one that the table is sorted by."""
    arrow = "▼" if order.is_descending() else "▲"
    return [
        column.layout._replace(heading=column.layout.heading + (arrow if name == order.column else ""))
        for name, column in COLUMNS.items()
    ]


def cells(lock: LockStatus, at: float) -> list[str]:
    """Return the cells of a lock. They are not escaped yet."""
    return [column.cell(lock, at) for column in COLUMNS.values()]


def matches(lock: LockStatus, text: str) -> bool:
    """Whether the name, or the host, pid or program of a holder or waiter contains the text, ignoring case."""
    text = text.casefold()
    if not text or text in lock.name.casefold() or text in display_name(lock.name).casefold():
        return True
    return any(
        text in str(ticket).casefold() or text in ticket.program.casefold() for ticket in (*lock.holders, *lock.waiters)
    )


def ttl_color(lock: LockStatus) -> str:
    """Return the colour for the share of the ttl that is left to the lease that expires first."""
    share = lock.ttl_left / lock.ttl if 0 < lock.ttl < math.inf else 1.0
    return "green" if share >= _LATE else "yellow" if share >= _CRITICAL else "red"


def ttl_bar(left: float, ttl: float) -> str:
    """Return a bar and the seconds.

    >>> ttl_bar(20, 30), ttl_bar(1.4, 30), ttl_bar(math.inf, math.inf)
    ('████   20s', '▎     1.4s', '-')
    """
    return "-" if left == math.inf else f"{bar(left, ttl):<{_BAR}}{short(left):>4}"


def bar(left: float, ttl: float) -> str:
    """Return a bar whose length is the share of the ttl that is left; empty without a ttl."""
    eighths = round(_BAR * 8 * min(1.0, left / ttl)) if 0 < ttl < math.inf else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def summary(snapshot: Snapshot) -> str:
    """Return the numbers of locks, waiters and deadlocks."""
    waiters = sum(len(lock.waiters) for lock in snapshot.locks)
    deadlocks = len(snapshot.graph.cycles)
    return f"{_count(len(snapshot.locks), 'lock')}, {_count(waiters, 'waiter')}" + (
        f", {_count(deadlocks, 'DEADLOCK')}" if deadlocks else ""
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 'S' if noun.isupper() else 's'}"
