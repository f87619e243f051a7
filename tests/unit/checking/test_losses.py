"""Working on without the lock: the loss was not noticed, not told, told twice, or taken back."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import LossTold
from holdfast.guarantees import Exclusion
from tests.unit.checking.stories import LOCK, found, granted, lost, released, shared, told, what

LEASE = granted(0, "a", 1, deadline=5)


def checked(at: float, *, held: bool) -> h.Checked:
    return h.Checked(at, "a", 1, LOCK, held)


def ended(at: float, how: h.ReleaseOutcome = "released") -> h.ReleaseEnded:
    return h.ReleaseEnded(at, "a", 1, LOCK, how)


def test_a_loss_is_told_before_the_next_conflicting_grant() -> None:
    assert not found(LossTold, [LEASE, lost(5, "a", 1), told(5.5, "a", 1), granted(5.5, "b", 2)])
    assert "not told before b was granted it" in what(
        LossTold, [LEASE, lost(5, "a", 1), granted(5.5, "b", 2), told(5.5, "a", 1)]
    )


def test_a_lease_is_noticed_to_be_over_before_the_next_conflicting_grant() -> None:
    assert "over by its own clock" in what(
        LossTold, [LEASE, granted(5.5, "b", 2), lost(5.5, "a", 1), told(5.5, "a", 1)]
    )


def test_a_grant_that_does_not_conflict_need_not_wait_for_it() -> None:
    reader = shared(0, "a", 1)._replace(deadline=5)

    assert not found(LossTold, [reader, lost(5, "a", 1), shared(5.5, "b", 2), told(5.6, "a", 1)])
    assert found(LossTold, [reader, lost(5, "a", 1), granted(5.5, "b", 2), told(5.6, "a", 1)])


def test_the_last_permit_of_a_semaphore_conflicts() -> None:
    permits: h.History = [shared(0, "a", 1, limit=2), shared(0, "c", 3, limit=2), lost(5, "a", 1)]

    assert found(LossTold, [*permits, shared(5.5, "b", 2, limit=2), told(5.6, "a", 1)])
    assert not found(LossTold, [*permits, told(5.5, "a", 1), shared(5.5, "b", 2, limit=2)])


def test_a_process_that_stands_still_has_until_it_runs_again() -> None:
    paused: h.History = [LEASE, h.Paused(4, "a"), granted(6, "b", 2), h.Resumed(9, "a")]

    assert not found(LossTold, [*paused, lost(9, "a", 1), told(9, "a", 1)])
    assert "over 3 s late" in what(LossTold, [*paused, lost(12, "a", 1), told(12, "a", 1)])


def test_a_dead_process_need_not_be_told() -> None:
    assert not found(LossTold, [LEASE, lost(5, "a", 1), h.Crashed(5, "a"), granted(6, "b", 2), h.End(20)])


def test_it_is_told_soon_even_if_nobody_else_wants_the_lock() -> None:
    assert not found(LossTold, [LEASE, lost(5.9, "a", 1), told(6.8, "a", 1), h.End(20)])
    assert "over 1.1 s late" in what(LossTold, [LEASE, lost(6.1, "a", 1), told(6.1, "a", 1)])
    assert "late" in what(LossTold, [LEASE, lost(5, "a", 1), told(6.1, "a", 1)])


def test_a_loss_that_is_never_told_or_never_noticed_is_found_at_the_end() -> None:
    assert "never told" in what(LossTold, [LEASE, lost(5, "a", 1), h.End(20)])
    assert "never noticed" in what(LossTold, [LEASE, h.End(20)])
    assert not found(LossTold, [LEASE, h.End(5.5)])
    assert not found(LossTold, [LEASE, h.Paused(4, "a"), h.End(20)])


def test_who_records_no_telling_is_not_asked_for_it() -> None:
    assert not found(LossTold, [LEASE, lost(5, "a", 1), granted(6, "b", 2), h.End(20)], Promises(reports_losses=False))


def test_a_loss_is_told_once() -> None:
    assert "a second time" in what(LossTold, [LEASE, lost(5, "a", 1), told(5, "a", 1), told(5, "a", 1)])
    assert found(LossTold, [LEASE, lost(5, "a", 1), told(5, "a", 1), lost(5, "a", 1)])


def test_a_released_lease_is_not_lost() -> None:
    start: h.History = [LEASE, released(1, "a", 1), ended(2)]

    assert not found(LossTold, start)
    assert "after it was released" in what(LossTold, [*start, lost(3, "a", 1)])
    assert "although it was released" in what(LossTold, [*start, told(3, "a", 1)])


def test_a_lease_that_is_held_is_not_told_to_be_lost() -> None:
    assert "although it was held" in what(LossTold, [LEASE, told(1, "a", 1), released(2, "a", 1)])


@pytest.mark.parametrize("news", [[lost(2, "a", 1), told(2, "a", 1)], [told(2, "a", 1)], []])
def test_a_release_may_find_that_the_lease_was_lost(news: h.History) -> None:
    history: h.History = [LEASE, released(1, "a", 1), *news, ended(2, "lost")]

    assert not found(LossTold, history if news else [*history, told(2, "a", 1)])


def test_an_owed_release_is_a_release() -> None:
    assert not found(LossTold, [LEASE, released(1, "a", 1), ended(2, "owed"), h.End(20)])
    assert found(LossTold, [LEASE, released(1, "a", 1), ended(2, "owed"), told(3, "a", 1)])


def test_releasing_a_lost_lease_raises_and_does_not_succeed() -> None:
    start: h.History = [LEASE, lost(5, "a", 1), told(5, "a", 1), released(6, "a", 1)]

    assert not found(LossTold, [*start, ended(6, "lost")])
    assert "as if it had not been lost" in what(LossTold, [*start, ended(6)])


def test_a_release_after_the_deadline_does_not_succeed() -> None:
    assert "after its deadline" in what(LossTold, [LEASE, released(5.1, "a", 1), ended(5.2)])
    assert not found(LossTold, [LEASE, released(4.9, "a", 1), ended(5.2)]), "it was held when the call began"
    assert not found(LossTold, [LEASE, released(5.1, "a", 1), lost(5.1, "a", 1), told(5.1, "a", 1), ended(5.1, "lost")])


def test_nothing_says_held_after_the_deadline() -> None:
    ending: h.History = [lost(5.1, "a", 1), told(5.1, "a", 1)]

    assert not found(LossTold, [LEASE, checked(4.9, held=True), checked(5.1, held=False), *ending])
    assert "said to be held after its deadline" in what(LossTold, [LEASE, checked(5.1, held=True), *ending])


@pytest.mark.parametrize("end", [lost(1, "a", 1), released(1, "a", 1)])
def test_nothing_says_held_after_the_end(end: h.Event) -> None:
    assert found(LossTold, [LEASE, end, checked(2, held=True)], Promises(reports_losses=False))
    assert not found(LossTold, [LEASE, end, checked(2, held=False)], Promises(reports_losses=False))


def test_a_renewal_moves_the_deadline_but_revives_nothing() -> None:
    renewed = h.Renewed(4, "a", 1, LOCK, 9)
    ending: h.History = [lost(9, "a", 1), told(9, "a", 1)]

    assert not found(LossTold, [LEASE, renewed, checked(8, held=True), *ending])
    assert "revived" in what(LossTold, [LEASE, renewed._replace(at=5.1), *ending])
    assert "renewed after it was lost" in what(LossTold, [LEASE, lost(3, "a", 1), told(3, "a", 1), renewed])


def test_what_the_server_forgot_is_learned_after_the_next_grant() -> None:
    forgot = h.StateLost(5.2, majority=False)
    history: h.History = [LEASE, lost(5, "a", 1), forgot, granted(5.5, "b", 2), told(5.6, "a", 1)]

    assert not found(LossTold, history)
    assert found(LossTold, history, Promises(exclusion=Exclusion.CONSENSUS)), "the others remember"
    assert found(LossTold, [event for event in history if event is not forgot])


def test_what_was_released_is_not_asked_for_at_the_next_grant() -> None:
    assert not found(LossTold, [LEASE, released(1, "a", 1), granted(2, "b", 2), ended(3), h.End(3)])


def test_a_loss_that_the_release_found_is_told_too() -> None:
    start: h.History = [LEASE, released(1, "a", 1), ended(2, "lost")]

    assert not found(LossTold, [*start, told(2.5, "a", 1), h.End(20)])
    assert "never told" in what(LossTold, [*start, h.End(20)])
    assert "after it was released" in what(LossTold, [LEASE, released(1, "a", 1), ended(2), ended(3, "lost")])


def test_a_process_that_runs_again_is_judged_again() -> None:
    again: h.History = [h.Paused(0, "a"), h.Resumed(1, "a"), lost(5, "a", 1)]

    assert found(LossTold, [LEASE, *again, granted(5.5, "b", 2), told(5.6, "a", 1)])
    assert found(LossTold, [LEASE, *again, h.End(20)])


def test_a_process_that_was_paused_when_it_died_is_not_paused_in_its_next_life() -> None:
    history: h.History = [h.Paused(0, "a"), h.Crashed(1, "a"), h.Restarted(2, "a"), granted(3, "a", 2, deadline=5)]

    assert "never noticed" in what(LossTold, [*history, h.End(20)])


def test_an_event_of_a_dead_process_says_so() -> None:
    assert "gone with its process" in what(LossTold, [LEASE, h.Crashed(1, "a"), checked(2, held=True)])


def test_readers_of_what_the_server_forgot_need_not_be_told_before_the_next_writer() -> None:
    history: h.History = [shared(0, "a", 1), lost(5, "a", 1), h.StateLost(5.2), granted(5.5, "b", 2), told(5.6, "a", 1)]

    assert not found(LossTold, history)
    assert found(LossTold, [event for event in history if not isinstance(event, h.StateLost)])


def test_deadlines_have_the_tolerance_of_the_clock() -> None:
    slack = Promises(clock_error=0.5)
    ending: h.History = [lost(5.6, "a", 1), told(5.6, "a", 1)]

    assert not found(LossTold, [LEASE, checked(5.5, held=True), *ending], slack)
    assert found(LossTold, [LEASE, checked(5.6, held=True), *ending], slack)
    assert not found(LossTold, [LEASE, granted(5.5, "b", 2), *ending], slack)
    assert found(LossTold, [LEASE, granted(5.6, "b", 2), *ending], slack)
    assert not found(LossTold, [LEASE, h.Renewed(5.5, "a", 1, LOCK, 9)], slack)
    assert found(LossTold, [LEASE, h.Renewed(5.6, "a", 1, LOCK, 9)], slack)
