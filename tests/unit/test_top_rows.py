"""Hazard: `holdfast top` sorts, filters or colours locks so that a lock with a problem is not noticed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.backends.memory.protocol.guarantees import GUARANTEES
from holdfast.cli.top import rows
from holdfast.cli.top.rows import COLUMNS, Order
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.core.wait_graph import wait_graph
from holdfast.monitor import LockStatus, Snapshot, Tracker

NOW = 1_000_000.0


def ticket(pid: int, fence: int | None = None, **fields: Any) -> TicketInfo:
    defaults: dict[str, Any] = {
        "fence": fence,
        "host": "web-3",
        "pid": pid,
        "agent": "main",
        "program": "shop",
        "since": NOW - pid,
        "remaining": 10.0,
        "exclusive": True,
        "limit": 1,
        "meta": {},
    }
    return TicketInfo(**(defaults | fields))


def status(info: LockInfo) -> LockStatus:
    tracker = Tracker()
    tracker.update([info], NOW)
    return tracker.locks[0]


def cell(column: str, lock: LockStatus) -> str:
    return rows.cells(lock, NOW)[[*COLUMNS].index(column)]


HELD = status(LockInfo("order:1", (ticket(5, 7),), ()))
CONTENDED = status(LockInfo("order:2", (ticket(90, 3),), (ticket(70), ticket(3))))
POOL = status(LockInfo("Pool", tuple(ticket(pid, pid, exclusive=False, limit=3) for pid in (1, 2)), ()))
FREE_WITH_WAITER = status(LockInfo("waiting", (), (ticket(4),)))


def test_the_cells_of_a_lock_with_waiters() -> None:
    assert rows.cells(CONTENDED, NOW) == ["order:2", "lock", "web-3/90", "shop", "3", "1m", "██████ 10s", "2", "1m"]


def test_a_lock_without_a_holder_has_empty_cells() -> None:
    assert rows.cells(FREE_WITH_WAITER, NOW) == ["waiting", "lock", "(none)", "", "", "", "", "1", "4.0s"]


def test_further_holders_are_counted() -> None:
    assert cell("holder", POOL) == "web-3/1 +1"
    assert cell("kind", POOL) == "semaphore 3"


def test_an_unknown_time_is_a_dash() -> None:
    unknown = status(LockInfo("a", (ticket(1, 1, since=0.0),), ()))

    assert cell("held", unknown) == "-"


def test_a_name_that_is_not_printable_is_quoted() -> None:
    assert cell("lock", status(LockInfo("two\nlines", (ticket(1, 1),), ()))) == r"$'two\nlines'"


@pytest.mark.parametrize(
    ("column", "first"),
    [
        ("lock", "Pool"),
        ("kind", "order:1"),
        ("holder", "waiting"),
        ("fence", "order:1"),
        ("held", "order:2"),
        ("waiters", "order:2"),
        ("longest wait", "order:2"),
    ],
)
def test_locks_are_sorted_by_each_column(column: str, first: str) -> None:
    locks = [HELD, FREE_WITH_WAITER, POOL, CONTENDED]

    assert Order(column).sort(locks)[0].name == first
    assert Order(column, is_reversed=True).sort(locks)[0].name != first


def test_the_lease_that_expires_first_is_first() -> None:
    soon = status(LockInfo("soon", (ticket(1, 1, remaining=0.5),), ()))
    endless = status(LockInfo("endless", (ticket(1, 1, remaining=math.inf),), ()))

    assert [lock.name for lock in Order("ttl left").sort([endless, HELD, soon])] == ["soon", "order:1", "endless"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_equal_locks_keep_the_order_of_the_monitor(is_reversed: bool) -> None:  # noqa: FBT001
    locks = [status(LockInfo(name, (ticket(1, 1),), ())) for name in ("b", "a", "c")]

    assert Order("waiters", is_reversed=is_reversed).sort(locks) == locks


def test_the_key_for_the_next_column_reaches_all_columns() -> None:
    order, columns = Order(), []
    for _ in COLUMNS:
        columns.append(order.column)
        order = order.next()

    assert set(columns) == set(COLUMNS)
    assert order == Order()


def test_an_arrow_marks_the_column_and_the_direction() -> None:
    smallest_first = [column.heading for column in rows.headings(Order("lock"))]
    largest_first = [column.heading for column in rows.headings(Order("fence"))]

    assert [heading for heading in smallest_first if heading.endswith(("▲", "▼"))] == ["lock▲"]
    assert "fence▼" in largest_first
    assert "fence▲" in [column.heading for column in rows.headings(Order("fence", is_reversed=True))]


@pytest.mark.parametrize("text", ["", "ORDER", "order:2", "web-3/90", "/70", "WEB", "Shop"])
def test_the_filter_finds_names_and_the_processes_of_holders_and_waiters(text: str) -> None:
    assert rows.matches(CONTENDED, text)


@pytest.mark.parametrize("text", ["order:1", "web-4", "/71"])
def test_the_filter_excludes_other_locks(text: str) -> None:
    assert not rows.matches(CONTENDED, text)


def test_the_filter_finds_the_printed_form_of_a_name() -> None:
    assert rows.matches(status(LockInfo("two\nlines", (ticket(1, 1),), ())), r"two\nlines")


@pytest.mark.parametrize(("left", "color"), [(30, "green"), (20, "green"), (15, "yellow"), (11, "yellow"), (5, "red")])
def test_a_lease_that_was_not_renewed_in_time_changes_its_color(left: float, color: str) -> None:
    tracker = Tracker()
    tracker.update([LockInfo("a", (ticket(1, 1, remaining=30),), ())], NOW)
    tracker.update([LockInfo("a", (ticket(1, 1, remaining=left),), ())], NOW + 30 - left)

    assert rows.ttl_color(tracker.locks[0]) == color


def test_a_lease_without_an_end_is_green_and_has_no_bar() -> None:
    endless = status(LockInfo("a", (ticket(1, 1, remaining=math.inf),), ()))

    assert rows.ttl_color(endless) == "green"
    assert cell("ttl left", endless) == "-"


@pytest.mark.parametrize(
    ("left", "ttl", "bar"),
    [(30, 30, "██████"), (45, 30, "██████"), (15, 30, "███"), (1, 48, "▏"), (0, 30, ""), (5, 0, ""), (5, math.inf, "")],
)
def test_the_length_of_the_bar_is_the_remaining_share_of_the_ttl(left: float, ttl: float, bar: str) -> None:
    assert rows.bar(left, ttl) == bar


def test_the_summary_counts_locks_waiters_and_deadlocks() -> None:
    deadlock = wait_graph(
        [
            LockInfo("a", (ticket(1, 1, caller="x"),), (ticket(2, caller="y"),)),
            LockInfo("b", (ticket(2, 2, caller="y"),), (ticket(1, caller="x"),)),
        ]
    )

    def snapshot(locks: tuple[LockStatus, ...], graph: Any) -> Snapshot:
        return Snapshot(NOW, NOW, locks, (), graph, None, 1.0, 0.1, GUARANTEES, ())

    assert rows.summary(snapshot((), wait_graph([]))) == "0 locks, 0 waiters"
    assert rows.summary(snapshot((FREE_WITH_WAITER,), wait_graph([]))) == "1 lock, 1 waiter"
    assert rows.summary(snapshot((HELD, CONTENDED), deadlock)) == "2 locks, 2 waiters, 1 DEADLOCK"
