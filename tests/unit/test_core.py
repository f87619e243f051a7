"""The small parts of the core: the rule of the queue, durations, deadlines and their heap, notifications, run_sync."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import threading
from datetime import timedelta
from typing import NamedTuple

import pytest

from holdfast.core.clock import lease_deadline
from holdfast.core.deadlines import DeadlineHeap
from holdfast.core.names import Duration, check_duration, parse_duration
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification, first_blocker, process_text
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from tests.support.wakeups import claim_of


class QueueEntry(NamedTuple):
    exclusive: bool


READ, WRITE = QueueEntry(exclusive=False), QueueEntry(exclusive=True)


@pytest.mark.parametrize(
    ("limit", "ahead", "is_granted"),
    [
        (1, [], True),
        (1, [WRITE], False),
        (1, [READ], False),
        (None, [], True),
        (None, [READ] * 100, True),
        (None, [READ, WRITE, READ], False),
        (3, [READ, READ], True),
        (3, [READ, READ, READ], False),
        (3, [WRITE], False),
    ],
)
def test_a_ticket_is_granted_unless_an_earlier_one_blocks_it(
    limit: int | None,
    ahead: list[QueueEntry],
    is_granted: bool,  # noqa: FBT001
) -> None:
    assert (first_blocker(limit, ahead) is None) == is_granted


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (timedelta(minutes=1.5), 90.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("30s", 30.0),
        (" 15 m ", 900.0),
        ("1.1h", 3960.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_text_with_a_unit(duration: Duration, seconds: float) -> None:
    assert check_duration("ttl", duration) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("0.5", 0.5), ("30s", 30.0), ("2h", 7200.0)])
def test_a_number_without_a_unit_is_seconds_in_a_url_and_on_a_command_line(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_the_rule_reads_only_as_many_tickets_as_needed() -> None:
    queue = itertools.repeat(READ)

    assert first_blocker(3, queue) is READ
    assert first_blocker(1, itertools.chain([WRITE], queue)) is WRITE


def test_a_deadline_is_before_the_end_of_the_ttl() -> None:
    assert lease_deadline(100.0, 30.0, 0.001) == pytest.approx(129.699)
    assert lease_deadline(100.0, 0.1, 0.0) < 100.1


class Item:
    def __init__(self, due: float | None) -> None:
        self.due = due


def due(item: Item) -> float | None:
    return item.due


def test_a_deadline_heap_returns_due_items_in_order() -> None:
    heap = DeadlineHeap(due)
    items = [Item(when) for when in (5.0, 1.0, 3.0)]
    for item in items:
        heap.add(item)

    assert heap.earliest() == 1.0
    assert [item.due for item in heap.take(3.0, 10)] == [1.0, 3.0]
    assert heap.take(3.0, 10) == []
    assert heap.earliest() == 5.0


def test_a_deadline_heap_follows_items_that_move_later_or_end() -> None:
    heap = DeadlineHeap(due)
    moved, ended, dropped = Item(1.0), Item(2.0), Item(3.0)
    for item in (moved, ended, dropped):
        heap.add(item)

    moved.due, ended.due = 10.0, None
    del dropped, item
    gc.collect()

    assert heap.earliest() == 10.0
    assert heap.take(9.0, 10) == []
    assert heap.take(10.0, 10) == [moved]
    assert heap.earliest() is None


def test_a_deadline_heap_returns_items_that_are_due_soon_with_the_first_due_item() -> None:
    heap = DeadlineHeap(due)
    items = [Item(1.0), Item(1.4), Item(1.6)]
    for item in items:
        heap.add(item)

    assert heap.take(0.9, 10, lambda _: 0.5) == []
    assert heap.take(1.0, 10, lambda _: 0.5) == items[:2]


def test_a_deadline_heap_returns_at_most_the_requested_number() -> None:
    heap = DeadlineHeap(due)
    items = [Item(float(number)) for number in range(10)]
    for item in items:
        heap.add(item)

    assert heap.take(100.0, 4) == items[:4]
    assert heap.take(100.0, 100) == items[4:]


def test_a_deadline_heap_does_not_grow_with_items_that_have_ended() -> None:
    heap = DeadlineHeap(due)
    living = [Item(1000.0 + number) for number in range(50)]
    for item in living:
        heap.add(item)

    for _ in range(10_000):
        short_lived = Item(random.random())  # noqa: S311
        heap.add(short_lived)
        short_lived.due = None

    assert len(heap._heap) < 300
    assert heap.take(2000.0, 100) == living


def test_a_notification_before_the_wait_is_kept() -> None:
    wakeups = Wakeups(ThreadRuntime())
    claim = claim_of("n")
    wakeups.expect(claim)
    wakeups.wake(Notification("n"))

    run_sync(wakeups.wait(claim, system.now() + 60))  # returns at once, or this test hangs


def test_a_notification_for_an_unknown_ticket_is_dropped() -> None:
    wakeups = Wakeups(ThreadRuntime())
    wakeups.wake(Notification("gone"))
    claim = claim_of("n")
    wakeups.expect(claim)
    wakeups.forget(claim)
    wakeups.wake(Notification("n"))

    assert wakeups.expected() == []
    assert claim.notification is None


def test_a_notification_wakes_the_thread_that_waits() -> None:
    wakeups = Wakeups(ThreadRuntime())
    claim = claim_of("n")
    wakeups.expect(claim)
    thread = threading.Thread(target=lambda: run_sync(wakeups.wait(claim, system.now() + 60)))
    thread.start()

    wakeups.wake(Notification("n"))
    thread.join(30)

    assert not thread.is_alive()


def test_a_blocking_adapter_that_suspends_is_an_error() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        run_sync(suspends())


def test_the_info_of_a_foreign_ticket_is_read_as_far_as_possible() -> None:
    assert process_text("not JSON") == "?/?"
    assert process_text('{"who": 3, "meta": {}}') == "?/?"
    assert process_text('{"who": {"host": "web-3", "pid": 812}, "meta": {}}') == "web-3/812"
    assert process_text("") == "?/?"


def test_nonces_are_long_and_never_the_same() -> None:
    nonces = {system.nonce() for _ in range(1000)}

    assert len(nonces) == 1000
    assert {len(nonce) for nonce in nonces} == {32}


def test_a_forked_child_draws_other_nonces_than_its_parent() -> None:
    system.nonce()  # the parent generates several in advance
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, "".join(system.nonce() for _ in range(200)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        drawn = pipe.read().decode()
    os.waitpid(pid, 0)

    nonces_of_child = {drawn[start : start + 32] for start in range(0, len(drawn), 32)}

    assert len(nonces_of_child) == 200
    assert nonces_of_child.isdisjoint(system.nonce() for _ in range(200))
    assert all(0 <= system.jitter() < 1 for _ in range(100))


def test_every_thread_is_a_caller_of_its_own() -> None:
    runtime = ThreadRuntime()
    callers = [runtime.caller()]

    for _ in range(5):
        thread = threading.Thread(target=lambda: callers.append(runtime.caller()))
        thread.start()
        thread.join()

    assert len(set(map(id, callers))) == 6  # although the idents of ended threads are reused
    assert runtime.caller() is callers[0]
