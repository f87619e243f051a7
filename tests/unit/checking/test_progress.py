"""The checker misses a lock that is never granted although all faults are over."""

from __future__ import annotations

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import SteadyProgress
from tests.unit.checking.histories import LOCK, check, failed, find, granted, lost, message, released, started

PROMISES = Promises(wait_max=10.0, idle_max=4.0, settle_max=2.0)
HEALED = h.Healed(100)


def test_a_call_that_waits_when_the_world_is_healed_ends_in_time() -> None:
    holder: h.History = [started(0, "h", 1), granted(0, "h", 1), started(50, "a", 2), HEALED]

    assert not find(SteadyProgress, [*holder, released(110, "h", 1), granted(110, "a", 2)], PROMISES)
    assert "waited 10.1 s" in message(
        SteadyProgress, [*holder, released(110, "h", 1), granted(110.1, "a", 2)], PROMISES
    )
    assert "since the world was healed" in message(SteadyProgress, [*holder, failed(110.1, "a", 2)], PROMISES)


def test_a_call_that_still_waits_at_the_end_is_found() -> None:
    holder: h.History = [started(0, "h", 1), granted(0, "h", 1), HEALED, started(105, "a", 2)]

    assert "and still does" in message(SteadyProgress, [*holder, h.End(115.1)], PROMISES)
    assert not find(SteadyProgress, [*holder, h.End(115)], PROMISES)
    assert not find(SteadyProgress, [*holder, h.Crashed(106, "a"), h.End(120)], PROMISES)
    assert not find(SteadyProgress, [*holder, h.Paused(106, "a"), h.End(120)], PROMISES)


def test_nothing_is_checked_before_the_world_is_healed() -> None:
    history: h.History = [started(0, "a", 1), granted(1000, "a", 1), h.End(2000)]

    assert not find(SteadyProgress, history, PROMISES)
    assert not check(SteadyProgress, history, PROMISES).was_tested


def test_a_free_lock_is_granted_to_a_waiter_in_time() -> None:
    free: h.History = [HEALED, started(100, "h", 1), granted(100, "h", 1), started(101, "a", 2), released(102, "h", 1)]

    assert not find(SteadyProgress, [*free, granted(106, "a", 2)], PROMISES)
    assert message(SteadyProgress, [*free, granted(106.1, "a", 2)], PROMISES) == (
        "no client held 'report' for 4.1 s although one waited for it"
    )
    assert find(SteadyProgress, [*free, h.End(106.1)], PROMISES)
    assert find(SteadyProgress, [*free, failed(106.1, "a", 2)], PROMISES)


def test_lost_and_crashed_holders_leave_a_free_lock_too() -> None:
    free: h.History = [HEALED, started(100, "h", 1), granted(100, "h", 1), started(101, "a", 2)]

    assert find(SteadyProgress, [*free, lost(102, "h", 1), granted(106.1, "a", 2)], PROMISES)
    assert find(SteadyProgress, [*free, h.Crashed(102, "h"), granted(106.1, "a", 2)], PROMISES)


def test_a_lock_without_a_waiter_may_be_free() -> None:
    assert not find(SteadyProgress, [HEALED, started(150, "a", 1), granted(150, "a", 1), h.End(151)], PROMISES)
    withdrawn: h.History = [
        HEALED,
        started(100, "a", 1),
        h.Crashed(101, "a"),
        started(150, "b", 2),
        granted(150, "b", 2),
    ]
    assert not find(SteadyProgress, withdrawn, PROMISES)


def test_a_call_that_was_granted_or_failed_no_longer_waits() -> None:
    later: h.History = [started(150, "b", 9), granted(150, "b", 9), h.End(151)]
    served: h.History = [HEALED, started(100, "a", 1), granted(100, "a", 1), released(101, "a", 1)]
    withdrawn: h.History = [HEALED, started(100, "a", 1), failed(101, "a", 1, "cancelled")]
    one_of_two_withdrawn: h.History = [
        HEALED,
        started(100, "a", 1),
        started(100, "c", 2),
        failed(101, "a", 1, "cancelled"),
    ]

    assert not find(SteadyProgress, [*served, *later], PROMISES)
    assert not find(SteadyProgress, [*withdrawn, *later], PROMISES)
    assert "for 4.1 s" in message(SteadyProgress, [*one_of_two_withdrawn, granted(104.1, "c", 2)], PROMISES)


def test_a_held_lock_is_not_idle() -> None:
    two: h.History = [HEALED, started(100, "a", 1), granted(100, "a", 1), started(100, "b", 2), granted(100, "b", 2)]
    waiting: h.History = [started(101, "c", 3), released(102, "a", 1)]

    assert not find(SteadyProgress, [*two, *waiting, released(107, "b", 2), granted(107, "c", 3)], PROMISES)


def test_a_resumed_client_is_checked_again() -> None:
    holder: h.History = [HEALED, started(100, "h", 1), granted(100, "h", 1), h.Paused(101, "a")]

    assert find(SteadyProgress, [*holder, h.Resumed(102, "a"), started(103, "a", 2), h.End(114)], PROMISES)
    assert find(SteadyProgress, [*holder, h.Crashed(102, "a"), started(103, "a", 2), h.End(114)], PROMISES)


def test_idle_time_starts_when_the_world_is_healed() -> None:
    assert not find(SteadyProgress, [started(0, "a", 1), HEALED, granted(104, "a", 1)], PROMISES)
    assert find(SteadyProgress, [started(0, "a", 1), HEALED, granted(104.1, "a", 1)], PROMISES)


def test_the_server_is_reached_in_a_healed_world() -> None:
    early: h.History = [HEALED, started(102, "a", 1), failed(102, "a", 1, "unavailable")]
    late: h.History = [HEALED, started(102.1, "a", 1), failed(102.1, "a", 1, "unavailable")]

    assert not find(SteadyProgress, early, PROMISES)
    assert "unavailable in a healed world" in message(SteadyProgress, late, PROMISES)
    assert not find(SteadyProgress, [*late[:2], failed(102.1, "a", 1, "cancelled")], PROMISES)


def test_reentry_ends_the_call() -> None:
    history: h.History = [HEALED, started(100, "a", 1), granted(100, "a", 1), started(101, "a", 2)]

    assert not find(SteadyProgress, [*history, h.Reentered(101, "a", 2, LOCK, 1), h.End(150)], PROMISES)
