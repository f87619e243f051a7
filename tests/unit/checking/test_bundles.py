"""Half of what was taken together, and nobody sees it: some granted and some not, one lost and the others kept."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import AllOrNothing, ExactOutcomes, SteadyProgress, TrueRenewals
from tests.unit.checking.stories import check, found, what

CALL = 1
ASKED: h.History = [h.AcquireStarted(0, "a", 1, "x", group=CALL), h.AcquireStarted(0, "a", 2, "y", group=CALL)]
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
    ids=["released", "lost", "crashed", "the release was told of a loss"],
)
def test_all_are_granted_and_end_together(end: h.History) -> None:
    checker = check(AllOrNothing, [*ASKED, *GRANTED, *end, h.End(9)])

    assert checker.was_tested
    assert not checker.violations


def test_a_call_that_gives_up_gives_up_all() -> None:
    gone: h.History = [h.AcquireFailed(3, "a", 1, "x", "timed out"), h.AcquireFailed(3, "a", 2, "y", "timed out")]

    assert not found(AllOrNothing, [*ASKED, *gone, h.End(9)])
    assert "'x' was given up alone" in what(AllOrNothing, [*ASKED, gone[0], h.End(9)])


def test_one_that_is_granted_alone_is_found() -> None:
    assert "'y', which it took together with that, was still asked for" in what(
        AllOrNothing, [*ASKED, GRANTED[0], h.End(9)]
    )
    assert found(AllOrNothing, [*ASKED, GRANTED[0], h.Granted(1.5, "a", 2, "y", 8), h.End(9)])


@pytest.mark.parametrize("end", [h.Lost(2, "a", 1, "x"), h.ReleaseStarted(2, "a", 1, "x")])
def test_one_that_ends_alone_is_found_when_time_goes_on(end: h.Event) -> None:
    on = h.Renewed(4, "a", 2, "y", 20)

    [violation] = found(AllOrNothing, [*ASKED, *GRANTED, end, on, h.End(9)])

    assert violation.at == 2
    assert violation.events == (GRANTED[1], end)


def test_a_lease_of_a_call_that_gave_up_is_not_held() -> None:
    gone: h.History = [h.AcquireFailed(3, "a", 1, "x", "timed out"), h.AcquireFailed(3, "a", 2, "y", "timed out")]

    kept = [*ASKED, h.MemberGranted(1, "a", 1, "x", 7), *gone, h.Checked(3, "a", 1, "x", held=True)]

    assert what(AllOrNothing, kept) == "a gave up the call that 'x' is part of, and holds it all the same"


def test_who_takes_one_lock_is_not_tested() -> None:
    assert not check(AllOrNothing, [h.AcquireStarted(0, "a", 1, "x"), h.Granted(1, "a", 1, "x", 7)]).was_tested


# ── what other checkers know of it ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_lost_with_another_need_not_have_run_out() -> None:
    broken: h.History = [h.ServerRemoved(60, "a", 1, "x"), h.Lost(61, "a", 1, "x")]
    story: h.History = [h.Healed(0), *ASKED, *GRANTED, *broken]

    assert not found(TrueRenewals, [*story, h.Lost(61, "a", 2, "y")])
    assert found(TrueRenewals, [*story[:-2], h.Lost(61, "a", 2, "y")])


def test_a_lock_that_is_kept_for_a_call_which_waits_for_the_next_is_not_idle() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    story: h.History = [h.Healed(0), *ASKED]
    other: h.History = [h.AcquireStarted(1, "b", 3, "x"), h.AcquireStarted(1, "d", 5, "y")]
    holds: h.History = [h.Granted(1, "d", 5, "y", 3)]

    assert not found(SteadyProgress, [*story, h.MemberGranted(1, "a", 1, "x", 7), *other, *holds, h.End(20)], promises)
    assert what(SteadyProgress, [*story, *other[:1], h.End(20)], promises).startswith("nobody held 'x' for 20 s")


def test_a_lock_is_not_waited_for_before_its_turn_and_is_then() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    story: h.History = [h.Healed(0), h.AcquireStarted(0, "b", 3, "x"), h.Granted(0, "b", 3, "x", 6), *ASKED]

    assert not found(SteadyProgress, [*story, h.End(20)], promises)
    assert "nobody held 'y' for 19 s" in what(
        SteadyProgress,
        [*story, h.ReleaseStarted(1, "b", 3, "x"), h.MemberGranted(1, "a", 1, "x", 7), h.End(20)],
        promises,
    )


def test_what_was_kept_and_is_gone_is_idle_for_others() -> None:
    promises = Promises(idle_max=10, wait_max=100)
    story: h.History = [h.Healed(0), *ASKED, h.MemberGranted(1, "a", 1, "x", 7), h.AcquireStarted(1, "b", 3, "x")]

    assert "nobody held 'x'" in what(SteadyProgress, [*story, h.ServerRemoved(2, "a", 1, "x"), h.End(20)], promises)
    given_up: h.History = [h.AcquireFailed(2, "a", 1, "x", "cancelled"), h.AcquireFailed(2, "a", 2, "y", "cancelled")]
    assert "nobody held 'x'" in what(SteadyProgress, [*story, *given_up, h.End(20)], promises)


@pytest.mark.parametrize(("group", "at"), [(None, 8.5), (CALL, 10.0)])
def test_a_call_that_has_to_give_back_what_it_had_has_more_time_for_it(group: int | None, at: float) -> None:
    asked = h.AcquireStarted(0, "a", 1, "x", 5.0, group=group)
    in_time = at - 1.0

    assert not found(ExactOutcomes, [asked, h.AcquireFailed(in_time, "a", 1, "x", "timed out")], Promises(late_max=3))
    assert found(ExactOutcomes, [asked, h.AcquireFailed(at, "a", 1, "x", "timed out")], Promises(late_max=3))
