"""A call that ends twice, never, too early, too late, or says busy when nobody was asked."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import ExactOutcomes, NothingLeft
from tests.unit.checking.stories import LOCK, asked, found, gave_up, granted, lost, queued, released, what

CALL = asked(0, "a", 1, timeout=5)


@pytest.mark.parametrize(
    "outcome", [granted(1, "a", 1), gave_up(1, "a", 1, "cancelled"), h.Reentered(1, "a", 1, LOCK, 1)]
)
def test_a_call_ends_once(outcome: h.Event) -> None:
    assert not found(ExactOutcomes, [CALL, outcome])
    assert "had ended already" in what(ExactOutcomes, [CALL, outcome, gave_up(6, "a", 1)])
    assert "had ended already" in what(ExactOutcomes, [CALL, outcome, granted(6, "a", 1)])


def test_what_ends_has_begun() -> None:
    assert "was never asked for" in what(ExactOutcomes, [granted(1, "a", 1)])


def test_a_ticket_stands_for_one_call() -> None:
    assert found(ExactOutcomes, [CALL, granted(1, "a", 1), asked(2, "a", 1)])
    assert not found(ExactOutcomes, [CALL, granted(1, "a", 1), asked(2, "a", 2)])


def test_a_dead_client_gets_no_outcome() -> None:
    assert "had ended already" in what(ExactOutcomes, [CALL, h.Crashed(1, "a"), granted(2, "a", 1)])
    assert not found(ExactOutcomes, [CALL, h.Crashed(1, "a"), h.End(100)])


def test_a_timeout_is_not_given_early() -> None:
    assert not found(ExactOutcomes, [CALL, gave_up(5, "a", 1)])
    assert "before its timeout of 5 s" in what(ExactOutcomes, [CALL, gave_up(4.99, "a", 1)])
    assert not found(ExactOutcomes, [CALL, gave_up(4.96, "a", 1)], Promises(drift=0.01))
    assert found(ExactOutcomes, [CALL, gave_up(4.94, "a", 1)], Promises(drift=0.01))


@pytest.mark.parametrize("outcome", [gave_up(8, "a", 1), gave_up(8, "a", 1, "unknown"), granted(8, "a", 1)])
def test_a_call_does_not_end_late(outcome: h.Granted | h.AcquireFailed) -> None:
    late = outcome._replace(at=8.1)

    assert not found(ExactOutcomes, [CALL, outcome])
    assert "with timeout=5" in what(ExactOutcomes, [CALL, late])
    assert not found(ExactOutcomes, [CALL, h.Paused(2, "a"), h.Resumed(6, "a"), late])


def test_a_call_that_should_have_ended_is_found_at_the_end() -> None:
    assert "had not come to its end" in what(ExactOutcomes, [CALL, h.End(8.1)])
    assert not found(ExactOutcomes, [CALL, h.End(8)])
    assert not found(ExactOutcomes, [CALL, h.Paused(1, "a"), h.End(100)])
    assert not found(ExactOutcomes, [asked(0, "a", 1), h.End(100)]), "without a timeout it may wait"


def test_time_counts_from_the_call() -> None:
    call = asked(100, "a", 1, timeout=5)

    assert not found(ExactOutcomes, [call, gave_up(105, "a", 1)])
    assert "after 4.9 s, before its timeout" in what(ExactOutcomes, [call, gave_up(104.9, "a", 1)])
    assert "after 8.5 s, with timeout=5" in what(ExactOutcomes, [call, gave_up(108.5, "a", 1)])
    assert not found(ExactOutcomes, [call, h.End(108)])


@pytest.mark.parametrize("again", [[h.Resumed(1, "a")], [h.Crashed(1, "a"), h.Restarted(1, "a")]])
def test_who_runs_again_is_judged_again(again: h.History) -> None:
    history: h.History = [h.Paused(0, "a"), *again, asked(2, "a", 2, timeout=5)]

    assert "had not come to its end" in what(ExactOutcomes, [*history, h.End(20)])
    assert "came to its end" in what(ExactOutcomes, [*history, granted(20, "a", 2)])


def test_without_a_timeout_nothing_times_out() -> None:
    assert found(ExactOutcomes, [asked(0, "a", 1), gave_up(1000, "a", 1)])
    assert not found(ExactOutcomes, [asked(0, "a", 1), gave_up(1000, "a", 1, "unavailable")])


def test_timeout_0_does_not_get_in_line() -> None:
    assert found(ExactOutcomes, [asked(0, "a", 1, timeout=0), queued(0, "a", 1), gave_up(0, "a", 1)])
    assert not found(ExactOutcomes, [asked(0, "a", 1, timeout=0.1), queued(0, "a", 1), gave_up(0.1, "a", 1)])


@pytest.mark.parametrize("client", ["a", None])
def test_busy_is_not_said_of_a_server_that_could_not_be_asked(client: str | None) -> None:
    cut = h.Unreachable(0, client)

    assert "could not be asked" in what(ExactOutcomes, [cut, CALL, gave_up(5, "a", 1)])
    assert not found(ExactOutcomes, [cut, CALL, gave_up(5, "a", 1, "unavailable")])
    assert not found(ExactOutcomes, [cut, h.Reachable(0, client), CALL, gave_up(5, "a", 1)])
    assert not found(ExactOutcomes, [h.Unreachable(0, "b"), CALL, gave_up(5, "a", 1)])


def test_busy_was_heard_near_the_end_of_the_time() -> None:
    assert found(ExactOutcomes, [CALL, h.Unreachable(2.9, "a"), gave_up(5, "a", 1)])
    assert not found(ExactOutcomes, [CALL, h.Unreachable(3.1, "a"), gave_up(5, "a", 1)])
    assert not found(ExactOutcomes, [asked(0, "a", 1, timeout=0), h.Unreachable(0.1, "a"), gave_up(0.2, "a", 1)])


# ── what is left on the server ───────────────────────────────────────────────────────────────────────────────────

SOON = Promises(leftover_max=10.0)


def remained(at: float, ticket: int | None = 1, *, is_holder: bool = True) -> h.Leftover:
    return h.Leftover(at, LOCK, "a", is_holder, ticket)


@pytest.mark.parametrize("ticket", [1, None])
@pytest.mark.parametrize("end", [released(2, "a", 1), lost(2, "a", 1), gave_up(2, "a", 1), h.Crashed(2, "a")])
def test_what_nobody_claims_is_gone_soon(end: h.Event, ticket: int | None) -> None:
    assert not found(NothingLeft, [CALL, end, remained(12, ticket)], SOON)
    assert "nobody has had a claim on it since 2 s" in what(NothingLeft, [CALL, end, remained(12.1, ticket)], SOON)


@pytest.mark.parametrize("ticket", [1, None])
def test_what_somebody_claims_may_stay(ticket: int | None) -> None:
    assert not found(NothingLeft, [CALL, remained(100, ticket, is_holder=False)], SOON)
    assert not found(NothingLeft, [CALL, granted(1, "a", 1), remained(100, ticket)], SOON)
    assert not found(NothingLeft, [CALL, h.Crashed(1, "b"), remained(100, ticket)], SOON)


def test_a_new_life_of_the_client_has_no_claim_on_what_the_old_one_left() -> None:
    history: h.History = [CALL, h.Crashed(1, "a"), h.Restarted(1, "a"), asked(2, "a", 2)]

    assert found(NothingLeft, [*history, remained(100, 1)], SOON)
    assert not found(NothingLeft, [*history, remained(100, 2)], SOON)


def test_what_nobody_ever_asked_for_is_found() -> None:
    assert "but nobody has a claim on it" in what(NothingLeft, [remained(100, 7, is_holder=False)], SOON)
    assert found(NothingLeft, [CALL, remained(100, None)._replace(client="b")], SOON)
