"""The checker misses a group that is granted, lost or released only in part."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import AllOrNothing, ExactOutcomes, SteadyProgress, TrueRenewals
from tests.unit.checking.histories import check, find, message

CALL = 1
STARTED: h.History = [h.AcquireStarted(0, "a", 1, "x", group=CALL), h.AcquireStarted(0, "a", 2, "y", group=CALL)]
GRANTED: h.History = [
    h.Granted(1, "a", 1, "x", 7, renews=True, group=CALL),
    h.Granted(1, "a", 2, "y", 8, renews=True, group=CALL),
]


@pytest.mark.parametrize(
    "end",
    [
        [h.ReleaseStarted(2, "a", 1, "x"), h.ReleaseStarted(2, "a", 2, "y")],
        [h.Lost(2, "a", 1, "x"), h.Lost(2, "a", 2, "y")],
        [h.Crashed(2, "a")],
        [h.ReleaseStarted(2, "a", 1, "x"), h.ReleaseStarted(2, "a", 2, "y"), h.Lost(3, "a", 2, "y")],
    ],
    ids=["released", "lost", "crashed", "the release found a loss"],
)
def test_a_group_that_is_granted_and_ends_together_is_accepted(end: h.History) -> None:
    checker = check(AllOrNothing, [*STARTED, *GRANTED, *end, h.End(9)])

    assert checker.was_tested
    assert not checker.violations


def test_a_failed_call_fails_for_all_locks() -> None:
    failed: h.History = [h.AcquireFailed(3, "a", 1, "x", "timed out"), h.AcquireFailed(3, "a", 2, "y", "timed out")]

    assert not find(AllOrNothing, [*STARTED, *failed, h.End(9)])
    assert "'x' was given up alone" in message(AllOrNothing, [*STARTED, failed[0], h.End(9)])


def test_a_lock_that_is_granted_without_the_rest_of_its_group_is_found() -> None:
    assert "'y', part of the same call, was still requested" in message(AllOrNothing, [*STARTED, GRANTED[0], h.End(9)])
    assert find(AllOrNothing, [*STARTED, GRANTED[0], h.Granted(1.5, "a", 2, "y", 8), h.End(9)])


@pytest.mark.parametrize("end", [h.Lost(2, "a", 1, "x"), h.ReleaseStarted(2, "a", 1, "x")])
def test_a_lease_that_ends_before_the_rest_of_its_group_is_found(end: h.Event) -> None:
    renewed = h.Renewed(4, "a", 2, "y", 20)

    [violation] = find(AllOrNothing, [*STARTED, *GRANTED, end, renewed, h.End(9)])

    assert violation.at == 2
    assert violation.events == (GRANTED[1], end)


def test_a_lease_that_is_still_held_after_its_call_failed_is_found() -> None:
    failed: h.History = [h.AcquireFailed(3, "a", 1, "x", "timed out"), h.AcquireFailed(3, "a", 2, "y", "timed out")]

    history = [*STARTED, h.MemberGranted(1, "a", 1, "x", 7), *failed, h.Checked(3, "a", 1, "x", held=True)]

    assert message(AllOrNothing, history) == "a gave up the call that 'x' is part of, but still holds it"


def test_a_call_for_one_lock_is_not_checked() -> None:
    assert not check(AllOrNothing, [h.AcquireStarted(0, "a", 1, "x"), h.Granted(1, "a", 1, "x", 7)]).was_tested


# ── groups in other checkers ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_lost_with_another_of_its_group_need_not_have_expired() -> None:
    lost: h.History = [h.ServerRemoved(60, "a", 1, "x"), h.Lost(61, "a", 1, "x")]
    history: h.History = [h.Healed(0), *STARTED, *GRANTED, *lost]

    assert not find(TrueRenewals, [*history, h.Lost(61, "a", 2, "y")])
    assert find(TrueRenewals, [*history[:-2], h.Lost(61, "a", 2, "y")])


def test_a_lock_that_a_call_keeps_while_it_waits_for_the_next_is_not_idle() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    history: h.History = [h.Healed(0), *STARTED]
    other: h.History = [h.AcquireStarted(1, "b", 3, "x"), h.AcquireStarted(1, "d", 5, "y")]
    holds: h.History = [h.Granted(1, "d", 5, "y", 3)]

    assert not find(SteadyProgress, [*history, h.MemberGranted(1, "a", 1, "x", 7), *other, *holds, h.End(20)], promises)
    assert message(SteadyProgress, [*history, *other[:1], h.End(20)], promises).startswith(
        "no client held 'x' for 20 s"
    )


def test_a_call_waits_for_the_locks_of_its_group_one_after_the_other() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    history: h.History = [h.Healed(0), h.AcquireStarted(0, "b", 3, "x"), h.Granted(0, "b", 3, "x", 6), *STARTED]

    assert not find(SteadyProgress, [*history, h.End(20)], promises)
    assert "no client held 'y' for 19 s" in message(
        SteadyProgress,
        [*history, h.ReleaseStarted(1, "b", 3, "x"), h.MemberGranted(1, "a", 1, "x", 7), h.End(20)],
        promises,
    )


def test_a_lock_that_a_call_keeps_is_idle_after_the_server_removed_it_or_the_call_failed() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    history: h.History = [h.Healed(0), *STARTED, h.MemberGranted(1, "a", 1, "x", 7), h.AcquireStarted(1, "b", 3, "x")]

    assert "no client held 'x'" in message(
        SteadyProgress, [*history, h.ServerRemoved(2, "a", 1, "x"), h.End(20)], promises
    )
    failed: h.History = [h.AcquireFailed(2, "a", 1, "x", "cancelled"), h.AcquireFailed(2, "a", 2, "y", "cancelled")]
    assert "no client held 'x'" in message(SteadyProgress, [*history, *failed, h.End(20)], promises)


@pytest.mark.parametrize(("group", "at"), [(None, 8.5), (CALL, 10.0)])
def test_a_call_for_several_locks_has_more_time_to_end(group: int | None, at: float) -> None:
    started = h.AcquireStarted(0, "a", 1, "x", 5.0, group=group)
    in_time = at - 1.0

    assert not find(ExactOutcomes, [started, h.AcquireFailed(in_time, "a", 1, "x", "timed out")], Promises(late_max=3))
    assert find(ExactOutcomes, [started, h.AcquireFailed(at, "a", 1, "x", "timed out")], Promises(late_max=3))
