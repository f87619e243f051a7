"""The checker misses a loss that is not noticed, not reported, reported twice, or followed by a renewal."""

from __future__ import annotations

import pytest

from holdfast.guarantees import Exclusion
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import LossesReported
from tests.unit.checking.histories import LOCK, find, granted, lost, message, released, reported, shared

LEASE = granted(0, "a", 1, deadline=5)


def checked(at: float, *, held: bool) -> h.Checked:
    return h.Checked(at, "a", 1, LOCK, held)


def ended(at: float, outcome: h.ReleaseOutcome = "released") -> h.ReleaseEnded:
    return h.ReleaseEnded(at, "a", 1, LOCK, outcome)


def test_a_loss_is_reported_before_the_next_conflicting_grant() -> None:
    assert not find(LossesReported, [LEASE, lost(5, "a", 1), reported(5.5, "a", 1), granted(5.5, "b", 2)])
    assert "not reported before b was granted it" in message(
        LossesReported, [LEASE, lost(5, "a", 1), granted(5.5, "b", 2), reported(5.5, "a", 1)]
    )


def test_an_expired_lease_is_noticed_before_the_next_conflicting_grant() -> None:
    assert "expired on its own clock" in message(
        LossesReported, [LEASE, granted(5.5, "b", 2), lost(5.5, "a", 1), reported(5.5, "a", 1)]
    )


def test_a_grant_that_does_not_conflict_may_precede_the_report() -> None:
    reader = shared(0, "a", 1)._replace(deadline=5)

    assert not find(LossesReported, [reader, lost(5, "a", 1), shared(5.5, "b", 2), reported(5.6, "a", 1)])
    assert find(LossesReported, [reader, lost(5, "a", 1), granted(5.5, "b", 2), reported(5.6, "a", 1)])


def test_the_last_permit_of_a_semaphore_conflicts() -> None:
    permits: h.History = [shared(0, "a", 1, limit=2), shared(0, "c", 3, limit=2), lost(5, "a", 1)]

    assert find(LossesReported, [*permits, shared(5.5, "b", 2, limit=2), reported(5.6, "a", 1)])
    assert not find(LossesReported, [*permits, reported(5.5, "a", 1), shared(5.5, "b", 2, limit=2)])


def test_a_paused_process_reports_a_loss_after_it_resumes() -> None:
    paused: h.History = [LEASE, h.Paused(4, "a"), granted(6, "b", 2), h.Resumed(9, "a")]

    assert not find(LossesReported, [*paused, lost(9, "a", 1), reported(9, "a", 1)])
    assert "expired 3 s late" in message(LossesReported, [*paused, lost(12, "a", 1), reported(12, "a", 1)])


def test_a_dead_process_reports_no_loss() -> None:
    assert not find(LossesReported, [LEASE, lost(5, "a", 1), h.Crashed(5, "a"), granted(6, "b", 2), h.End(20)])


def test_a_loss_is_reported_in_time_even_without_another_waiter() -> None:
    assert not find(LossesReported, [LEASE, lost(5.9, "a", 1), reported(6.8, "a", 1), h.End(20)])
    assert "expired 1.1 s late" in message(LossesReported, [LEASE, lost(6.1, "a", 1), reported(6.1, "a", 1)])
    assert "late" in message(LossesReported, [LEASE, lost(5, "a", 1), reported(6.1, "a", 1)])


def test_a_loss_that_is_never_reported_or_noticed_is_found_at_the_end() -> None:
    assert "never reported" in message(LossesReported, [LEASE, lost(5, "a", 1), h.End(20)])
    assert "never noticed" in message(LossesReported, [LEASE, h.End(20)])
    assert not find(LossesReported, [LEASE, h.End(5.5)])
    assert not find(LossesReported, [LEASE, h.Paused(4, "a"), h.End(20)])


def test_reports_are_not_required_if_the_recorder_records_none() -> None:
    assert not find(
        LossesReported, [LEASE, lost(5, "a", 1), granted(6, "b", 2), h.End(20)], Promises(reports_losses=False)
    )


def test_a_loss_is_reported_once() -> None:
    assert "a second time" in message(
        LossesReported, [LEASE, lost(5, "a", 1), reported(5, "a", 1), reported(5, "a", 1)]
    )
    assert find(LossesReported, [LEASE, lost(5, "a", 1), reported(5, "a", 1), lost(5, "a", 1)])


def test_a_released_lease_is_not_lost() -> None:
    start: h.History = [LEASE, released(1, "a", 1), ended(2)]

    assert not find(LossesReported, start)
    assert "after it was released" in message(LossesReported, [*start, lost(3, "a", 1)])
    assert "although it was released" in message(LossesReported, [*start, reported(3, "a", 1)])


def test_a_held_lease_is_not_reported_lost() -> None:
    assert "although it was held" in message(LossesReported, [LEASE, reported(1, "a", 1), released(2, "a", 1)])


@pytest.mark.parametrize("events", [[lost(2, "a", 1), reported(2, "a", 1)], [reported(2, "a", 1)], []])
def test_a_release_may_find_that_the_lease_was_lost(events: h.History) -> None:
    history: h.History = [LEASE, released(1, "a", 1), *events, ended(2, "lost")]

    assert not find(LossesReported, history if events else [*history, reported(2, "a", 1)])


def test_a_pending_release_is_a_release() -> None:
    assert not find(LossesReported, [LEASE, released(1, "a", 1), ended(2, "pending"), h.End(20)])
    assert find(LossesReported, [LEASE, released(1, "a", 1), ended(2, "pending"), reported(3, "a", 1)])


def test_releasing_a_lost_lease_raises_and_does_not_succeed() -> None:
    start: h.History = [LEASE, lost(5, "a", 1), reported(5, "a", 1), released(6, "a", 1)]

    assert not find(LossesReported, [*start, ended(6, "lost")])
    assert "as if it had not been lost" in message(LossesReported, [*start, ended(6)])


def test_a_release_after_the_deadline_does_not_succeed() -> None:
    assert "after its deadline" in message(LossesReported, [LEASE, released(5.1, "a", 1), ended(5.2)])
    assert not find(LossesReported, [LEASE, released(4.9, "a", 1), ended(5.2)]), "it was held when the call began"
    assert not find(
        LossesReported, [LEASE, released(5.1, "a", 1), lost(5.1, "a", 1), reported(5.1, "a", 1), ended(5.1, "lost")]
    )


def test_no_lease_reports_held_after_its_deadline() -> None:
    ending: h.History = [lost(5.1, "a", 1), reported(5.1, "a", 1)]

    assert not find(LossesReported, [LEASE, checked(4.9, held=True), checked(5.1, held=False), *ending])
    assert "reported held after its deadline" in message(LossesReported, [LEASE, checked(5.1, held=True), *ending])


@pytest.mark.parametrize("end", [lost(1, "a", 1), released(1, "a", 1)])
def test_no_lease_reports_held_after_its_end(end: h.Event) -> None:
    assert find(LossesReported, [LEASE, end, checked(2, held=True)], Promises(reports_losses=False))
    assert not find(LossesReported, [LEASE, end, checked(2, held=False)], Promises(reports_losses=False))


def test_a_renewal_moves_the_deadline_but_revives_nothing() -> None:
    renewed = h.Renewed(4, "a", 1, LOCK, 9)
    ending: h.History = [lost(9, "a", 1), reported(9, "a", 1)]

    assert not find(LossesReported, [LEASE, renewed, checked(8, held=True), *ending])
    assert "revived" in message(LossesReported, [LEASE, renewed._replace(at=5.1), *ending])
    assert "renewed after it was lost" in message(
        LossesReported, [LEASE, lost(3, "a", 1), reported(3, "a", 1), renewed]
    )


def test_a_state_loss_may_be_noticed_after_the_next_grant() -> None:
    state_lost = h.StateLost(5.2, majority=False)
    history: h.History = [LEASE, lost(5, "a", 1), state_lost, granted(5.5, "b", 2), reported(5.6, "a", 1)]

    assert not find(LossesReported, history)
    assert find(LossesReported, history, Promises(exclusion=Exclusion.CONSENSUS)), "the others remember"
    assert find(LossesReported, [event for event in history if event is not state_lost])


def test_no_report_is_required_for_a_released_lease() -> None:
    assert not find(LossesReported, [LEASE, released(1, "a", 1), granted(2, "b", 2), ended(3), h.End(3)])


def test_a_loss_noticed_by_the_release_is_reported_too() -> None:
    start: h.History = [LEASE, released(1, "a", 1), ended(2, "lost")]

    assert not find(LossesReported, [*start, reported(2.5, "a", 1), h.End(20)])
    assert "never reported" in message(LossesReported, [*start, h.End(20)])
    assert "after it was released" in message(LossesReported, [LEASE, released(1, "a", 1), ended(2), ended(3, "lost")])


def test_a_resumed_process_is_checked_again() -> None:
    again: h.History = [h.Paused(0, "a"), h.Resumed(1, "a"), lost(5, "a", 1)]

    assert find(LossesReported, [LEASE, *again, granted(5.5, "b", 2), reported(5.6, "a", 1)])
    assert find(LossesReported, [LEASE, *again, h.End(20)])


def test_a_process_that_died_while_paused_is_not_paused_after_its_restart() -> None:
    history: h.History = [h.Paused(0, "a"), h.Crashed(1, "a"), h.Restarted(2, "a"), granted(3, "a", 2, deadline=5)]

    assert "never noticed" in message(LossesReported, [*history, h.End(20)])


def test_the_message_names_a_dead_process() -> None:
    assert "gone with its process" in message(LossesReported, [LEASE, h.Crashed(1, "a"), checked(2, held=True)])


def test_readers_need_no_report_of_a_state_loss_before_the_next_writer() -> None:
    history: h.History = [
        shared(0, "a", 1),
        lost(5, "a", 1),
        h.StateLost(5.2),
        granted(5.5, "b", 2),
        reported(5.6, "a", 1),
    ]

    assert not find(LossesReported, history)
    assert find(LossesReported, [event for event in history if not isinstance(event, h.StateLost)])


def test_deadlines_have_the_tolerance_of_the_clock() -> None:
    slack = Promises(clock_error=0.5)
    ending: h.History = [lost(5.6, "a", 1), reported(5.6, "a", 1)]

    assert not find(LossesReported, [LEASE, checked(5.5, held=True), *ending], slack)
    assert find(LossesReported, [LEASE, checked(5.6, held=True), *ending], slack)
    assert not find(LossesReported, [LEASE, granted(5.5, "b", 2), *ending], slack)
    assert find(LossesReported, [LEASE, granted(5.6, "b", 2), *ending], slack)
    assert not find(LossesReported, [LEASE, h.Renewed(5.5, "a", 1, LOCK, 9)], slack)
    assert find(LossesReported, [LEASE, h.Renewed(5.6, "a", 1, LOCK, 9)], slack)
