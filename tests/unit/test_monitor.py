"""Hazard: a monitor misses or misreports a change, loses the history of a lock, grows forever, or ends at an outage."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence

import pytest

import holdfast
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.errors import BackendUnavailable
from holdfast.monitor import AsyncMonitor, Change, Monitor, Tracker
from holdfast.monitor.changes import diff
from holdfast.monitor.status import lock_as_dict

# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiter_that_acquires_the_lock_is_not_reported_as_left() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(3)))
    after = LockInfo("a", (ticket(2, fence=11),), (ticket(3),))

    assert pids(changes(before, after)) == [("released", 1), ("acquired", 2)]


def test_a_new_lease_of_the_same_holder_is_reported() -> None:
    before, after = LockInfo("a", (ticket(1, fence=10),), ()), LockInfo("a", (ticket(1, fence=11),), ())

    assert pids(changes(before, after)) == [("released", 1), ("acquired", 1)]


def test_one_of_two_identical_waiters_is_reported_as_left() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2), ticket(2)))
    after = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert pids(changes(before, after)) == [("left", 2)]


def test_holders_of_the_same_owner_with_the_same_fence_are_distinguished() -> None:
    before = LockInfo("a", (ticket(1, fence=10), ticket(2, fence=10), ticket(2, fence=10)), ())
    after = LockInfo("a", (ticket(2, fence=10), ticket(3, fence=10)), ())

    assert pids(changes(before, after)) == [("released", 1), ("released", 2), ("acquired", 3)]


def test_equal_reads_have_no_changes() -> None:
    info = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert changes(info, info) == []
    assert diff({}, {}, 0.0) == []


def test_the_end_of_a_lock_is_reported() -> None:
    before = LockInfo("a", (ticket(1, fence=10),), (ticket(2),))

    assert pids(diff({"a": before}, {}, 0.0)) == [("released", 1), ("left", 2)]


# ── state between reads ──────────────────────────────────────────────────────────────────────────────────────────


def test_holders_that_are_found_before_the_search_has_ended_are_not_reported_as_acquired() -> None:
    tracker = Tracker()
    locks = [LockInfo(name, (ticket(1, fence=10),), ()) for name in "abcd"]

    first = tracker.update(locks[:1], 1.0, is_complete=False)
    second = tracker.update(locks[:2], 2.0, is_complete=True)
    third = tracker.update(locks[:3], 3.0, is_complete=True)

    assert [(change.lock, change.kind) for change in (*first, *second, *third)] == [
        ("a", "holds"),
        ("b", "holds"),
        ("c", "acquired"),
    ]


def test_the_lock_with_the_longest_wait_comes_first() -> None:
    tracker = Tracker()
    tracker.update(
        [
            LockInfo("idle", (ticket(1, fence=1, since=10.0),), ()),
            LockInfo("old", (ticket(1, fence=2, since=20.0),), (ticket(2, since=50.0), ticket(3, since=40.0))),
            LockInfo("new", (ticket(1, fence=3, since=30.0),), (ticket(4, since=60.0),)),
            LockInfo("unknown", (ticket(1, fence=0, since=0.0),), (ticket(4, since=0.0),)),
        ],
        100.0,
    )

    assert [(lock.name, lock.longest_wait, lock.held_for) for lock in tracker.locks] == [
        ("old", 60.0, 80.0),
        ("new", 40.0, 70.0),
        ("idle", 0.0, 90.0),
        ("unknown", 0.0, 0.0),
    ]


def test_the_ttl_of_a_lease_is_the_largest_remaining_time_that_was_read() -> None:
    tracker = Tracker()

    for remaining in (12.0, 30.0, 21.0):
        tracker.update(
            [LockInfo("a", (ticket(1, fence=1, remaining=remaining), ticket(2, fence=2, remaining=math.inf)), ())],
            remaining,
        )

    (lock,) = tracker.locks
    assert (lock.ttl_left, lock.ttl) == (21.0, 30.0)
    assert [holding.ttl for holding in lock.holdings] == [30.0, math.inf]
    tracker.update([LockInfo("a", (ticket(1, fence=3, remaining=5.0),), ())], 50.0)
    assert (tracker.locks[0].ttl_left, tracker.locks[0].ttl) == (5.0, 5.0)


def test_the_history_has_past_and_present_leases_in_order() -> None:
    tracker = Tracker()
    tracker.update([held("a", 1)], 1.0)
    tracker.update([held("a", 1)], 2.0)
    tracker.update([held("a", 2)], 3.0)
    tracker.update([], 4.0)
    tracker.update([held("a", 3)], 5.0)

    assert [
        (lease.ticket.fence, lease.seen_from, lease.seen_until, lease.is_over) for lease in tracker.history("a")
    ] == [(1, 1.0, 2.0, True), (2, 3.0, 3.0, True), (3, 5.0, 5.0, False)]
    assert tracker.history("b") == ()


def test_the_history_is_bounded() -> None:
    tracker = Tracker(history_max=3, free_max=2)
    for fence in range(10):
        tracker.update([held("a", fence)], float(fence))
    assert [lease.ticket.fence for lease in tracker.history("a")] == [6, 7, 8, 9]

    for name in "bcd":
        tracker.update([held(name, 1)], 20.0)
    tracker.update([], 21.0)

    assert [bool(tracker.history(name)) for name in "abcd"] == [False, False, True, True]


def test_an_outage_is_reported_once_and_keeps_the_last_locks() -> None:
    tracker = Tracker()
    tracker.update([held("a", 1)], 1.0)

    error = BackendUnavailable(backend="redis", problem="down")
    first, second = tracker.fail(error, 2.0), tracker.fail(error, 3.0)

    assert [(change.kind, change.problem) for change in (*first, *second)] == [("unavailable", "redis: down")]
    assert (tracker.read_at, [lock.name for lock in tracker.locks]) == (1.0, ["a"])
    assert [change.kind for change in tracker.update([held("a", 1)], 4.0)] == ["available"]
    assert tracker.error is None


def test_a_cycle_is_reported_when_two_successive_reads_found_the_same_waiters_and_leases() -> None:
    tracker = Tracker()
    first, second = ticket(1)._replace(caller="one"), ticket(2)._replace(caller="two")
    deadlock = [
        LockInfo("a", (first._replace(fence=1),), (second,)),
        LockInfo("b", (second._replace(fence=2),), (first,)),
    ]
    later = [deadlock[0], LockInfo("b", (second._replace(fence=3),), (first,))]

    counts = []
    for number, locks in enumerate((deadlock, later, later, [])):
        tracker.update(locks, float(number))
        counts.append((len(tracker.graph.edges), len(tracker.graph.cycles)))

    assert counts == [(2, 0), (2, 0), (2, 1), (0, 0)]


@pytest.mark.parametrize(
    ("tickets", "kind", "text"),
    [
        ([(True, 1), (True, 1)], "lock", "lock"),
        ([(True, 1), (False, None)], "read-write", "read-write"),
        ([(False, 3)], "semaphore", "semaphore 3"),
    ],
)
def test_the_kind_is_derived_from_the_tickets(tickets: Sequence[tuple[bool, int | None]], kind: str, text: str) -> None:
    tracker = Tracker()
    holder, *waiters = [ticket(1, fence=1)._replace(exclusive=alone, limit=limit) for alone, limit in tickets]

    tracker.update([LockInfo("a", (holder,), tuple(waiters))], 1.0)

    assert (tracker.locks[0].kind, tracker.locks[0].kind_text) == (kind, text)


# ── monitors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_monitor_reports_locks_of_its_prefix_with_guarantees() -> None:
    with holdfast.Client("memory://") as client, Monitor(client, "order:") as monitor:
        with client.lock("order:1", meta={"n": 1}), client.lock("other"):
            held_snapshot = monitor.poll()
        free_snapshot = monitor.poll()

        assert [(change.kind, change.lock) for change in held_snapshot.changes] == [("holds", "order:1")]
        assert lock_as_dict(held_snapshot.infos[0])["holders"][0]["meta"] == {"n": 1}
        assert [change.kind for change in free_snapshot.changes] == ["released"]
        assert free_snapshot.locks == ()
        assert (held_snapshot.error, held_snapshot.searched, held_snapshot.warnings) == (None, 1.0, ())
        assert held_snapshot.guarantees == client.guarantees
        assert held_snapshot.read_at == held_snapshot.at > 0.0
        assert held_snapshot.poll_seconds >= 0.0
        assert [lease.is_over for lease in monitor.history("order:1")] == [True]


def test_a_monitor_in_asyncio_yields_snapshots() -> None:
    async def watch() -> list[Change]:
        store = f"memory://{uuid.uuid4().hex}"
        async with holdfast.AsyncClient(store) as client, AsyncMonitor(client) as monitor:
            lease = await client.lock("a").acquire()
            assert lease is not None
            changes: list[Change] = []
            async for snapshot in monitor.snapshots(interval=0.01):
                changes += snapshot.changes
                if snapshot.locks:
                    await lease.release()
                else:
                    return changes
        raise AssertionError

    assert [change.kind for change in asyncio.run(watch())] == ["holds", "released"]


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def changes(before: LockInfo, after: LockInfo) -> list[Change]:
    return diff({before.name: before}, {after.name: after}, 0.0)


def pids(changes: Sequence[Change]) -> list[tuple[str, int]]:
    return [(change.kind, change.ticket.pid) for change in changes if change.ticket is not None]


def held(name: str, fence: int) -> LockInfo:
    return LockInfo(name, (ticket(1, fence=fence),), ())


def ticket(pid: int, *, fence: int | None = None, since: float = 0.0, remaining: float = 1.0) -> TicketInfo:
    return TicketInfo(
        fence=fence,
        host="web-3",
        pid=pid,
        agent="main",
        program="",
        since=since,
        remaining=remaining,
        exclusive=True,
        limit=1,
        meta={},
    )
