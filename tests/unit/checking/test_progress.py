"""Safe and useless: the faults are over, and still nobody gets the lock."""

from __future__ import annotations

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import SteadyProgress
from tests.unit.checking.stories import LOCK, asked, check, found, gave_up, granted, lost, released, what

PROMISES = Promises(wait_max=10.0, idle_max=4.0, settle_max=2.0)
HEALED = h.Healed(100)


def test_a_call_that_waits_when_the_world_is_healed_comes_to_its_end_in_time() -> None:
    holder: h.History = [asked(0, "h", 1), granted(0, "h", 1), asked(50, "a", 2), HEALED]

    assert not found(SteadyProgress, [*holder, released(110, "h", 1), granted(110, "a", 2)], PROMISES)
    assert "waited 10.1 s" in what(SteadyProgress, [*holder, released(110, "h", 1), granted(110.1, "a", 2)], PROMISES)
    assert "since the world was healed" in what(SteadyProgress, [*holder, gave_up(110.1, "a", 2)], PROMISES)


def test_a_call_that_still_waits_at_the_end_is_found() -> None:
    holder: h.History = [asked(0, "h", 1), granted(0, "h", 1), HEALED, asked(105, "a", 2)]

    assert "and still does" in what(SteadyProgress, [*holder, h.End(115.1)], PROMISES)
    assert not found(SteadyProgress, [*holder, h.End(115)], PROMISES)
    assert not found(SteadyProgress, [*holder, h.Crashed(106, "a"), h.End(120)], PROMISES)
    assert not found(SteadyProgress, [*holder, h.Paused(106, "a"), h.End(120)], PROMISES)


def test_nothing_is_judged_as_long_as_faults_may_come() -> None:
    history: h.History = [asked(0, "a", 1), granted(1000, "a", 1), h.End(2000)]

    assert not found(SteadyProgress, history, PROMISES)
    assert not check(SteadyProgress, history, PROMISES).was_tested


def test_a_free_lock_is_given_soon_to_whoever_waits() -> None:
    free: h.History = [HEALED, asked(100, "h", 1), granted(100, "h", 1), asked(101, "a", 2), released(102, "h", 1)]

    assert not found(SteadyProgress, [*free, granted(106, "a", 2)], PROMISES)
    assert what(SteadyProgress, [*free, granted(106.1, "a", 2)], PROMISES) == (
        "nobody held 'report' for 4.1 s although somebody waited for it"
    )
    assert found(SteadyProgress, [*free, h.End(106.1)], PROMISES)
    assert found(SteadyProgress, [*free, gave_up(106.1, "a", 2)], PROMISES)


def test_lost_and_crashed_holders_leave_a_free_lock_too() -> None:
    free: h.History = [HEALED, asked(100, "h", 1), granted(100, "h", 1), asked(101, "a", 2)]

    assert found(SteadyProgress, [*free, lost(102, "h", 1), granted(106.1, "a", 2)], PROMISES)
    assert found(SteadyProgress, [*free, h.Crashed(102, "h"), granted(106.1, "a", 2)], PROMISES)


def test_a_lock_that_nobody_wants_may_stand_idle() -> None:
    assert not found(SteadyProgress, [HEALED, asked(150, "a", 1), granted(150, "a", 1), h.End(151)], PROMISES)
    withdrawn: h.History = [HEALED, asked(100, "a", 1), h.Crashed(101, "a"), asked(150, "b", 2), granted(150, "b", 2)]
    assert not found(SteadyProgress, withdrawn, PROMISES)


def test_whoever_was_served_or_gave_up_waits_no_more() -> None:
    later: h.History = [asked(150, "b", 9), granted(150, "b", 9), h.End(151)]
    served: h.History = [HEALED, asked(100, "a", 1), granted(100, "a", 1), released(101, "a", 1)]
    gone: h.History = [HEALED, asked(100, "a", 1), gave_up(101, "a", 1, "cancelled")]
    one_of_two_gone: h.History = [HEALED, asked(100, "a", 1), asked(100, "c", 2), gave_up(101, "a", 1, "cancelled")]

    assert not found(SteadyProgress, [*served, *later], PROMISES)
    assert not found(SteadyProgress, [*gone, *later], PROMISES)
    assert "for 4.1 s" in what(SteadyProgress, [*one_of_two_gone, granted(104.1, "c", 2)], PROMISES)


def test_a_lock_that_somebody_still_holds_is_not_idle() -> None:
    two: h.History = [HEALED, asked(100, "a", 1), granted(100, "a", 1), asked(100, "b", 2), granted(100, "b", 2)]
    waiting: h.History = [asked(101, "c", 3), released(102, "a", 1)]

    assert not found(SteadyProgress, [*two, *waiting, released(107, "b", 2), granted(107, "c", 3)], PROMISES)


def test_who_runs_again_is_judged_again() -> None:
    holder: h.History = [HEALED, asked(100, "h", 1), granted(100, "h", 1), h.Paused(101, "a")]

    assert found(SteadyProgress, [*holder, h.Resumed(102, "a"), asked(103, "a", 2), h.End(114)], PROMISES)
    assert found(SteadyProgress, [*holder, h.Crashed(102, "a"), asked(103, "a", 2), h.End(114)], PROMISES)


def test_idleness_counts_from_when_the_world_is_healed() -> None:
    assert not found(SteadyProgress, [asked(0, "a", 1), HEALED, granted(104, "a", 1)], PROMISES)
    assert found(SteadyProgress, [asked(0, "a", 1), HEALED, granted(104.1, "a", 1)], PROMISES)


def test_in_a_healed_world_the_server_is_found() -> None:
    early: h.History = [HEALED, asked(102, "a", 1), gave_up(102, "a", 1, "unavailable")]
    late: h.History = [HEALED, asked(102.1, "a", 1), gave_up(102.1, "a", 1, "unavailable")]

    assert not found(SteadyProgress, early, PROMISES)
    assert "unavailable in a healed world" in what(SteadyProgress, late, PROMISES)
    assert not found(SteadyProgress, [*late[:2], gave_up(102.1, "a", 1, "cancelled")], PROMISES)


def test_reentry_is_an_end_of_the_call() -> None:
    history: h.History = [HEALED, asked(100, "a", 1), granted(100, "a", 1), asked(101, "a", 2)]

    assert not found(SteadyProgress, [*history, h.Reentered(101, "a", 2, LOCK, 1), h.End(150)], PROMISES)
