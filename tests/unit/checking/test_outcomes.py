"""The checker misses a call that ends twice, never, too early, too late, or as busy without an answer."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import ExactOutcomes, NothingLeft
from tests.unit.checking.histories import LOCK, failed, find, granted, lost, message, queued, released, started

CALL = started(0, "a", 1, timeout=5)


@pytest.mark.parametrize(
    "outcome", [granted(1, "a", 1), failed(1, "a", 1, "cancelled"), h.Reentered(1, "a", 1, LOCK, 1)]
)
def test_a_call_ends_once(outcome: h.Event) -> None:
    assert not find(ExactOutcomes, [CALL, outcome])
    assert "had ended already" in message(ExactOutcomes, [CALL, outcome, failed(6, "a", 1)])
    assert "had ended already" in message(ExactOutcomes, [CALL, outcome, granted(6, "a", 1)])


def test_a_call_that_ends_without_a_start_is_found() -> None:
    assert "was never started" in message(ExactOutcomes, [granted(1, "a", 1)])


def test_a_ticket_that_is_used_for_two_calls_is_found() -> None:
    assert find(ExactOutcomes, [CALL, granted(1, "a", 1), started(2, "a", 1)])
    assert not find(ExactOutcomes, [CALL, granted(1, "a", 1), started(2, "a", 2)])


def test_a_dead_client_gets_no_outcome() -> None:
    assert "had ended already" in message(ExactOutcomes, [CALL, h.Crashed(1, "a"), granted(2, "a", 1)])
    assert not find(ExactOutcomes, [CALL, h.Crashed(1, "a"), h.End(100)])


def test_a_call_does_not_time_out_early() -> None:
    assert not find(ExactOutcomes, [CALL, failed(5, "a", 1)])
    assert "before its timeout of 5 s" in message(ExactOutcomes, [CALL, failed(4.99, "a", 1)])
    assert not find(ExactOutcomes, [CALL, failed(4.96, "a", 1)], Promises(drift=0.01))
    assert find(ExactOutcomes, [CALL, failed(4.94, "a", 1)], Promises(drift=0.01))


@pytest.mark.parametrize("outcome", [failed(8, "a", 1), failed(8, "a", 1, "unknown"), granted(8, "a", 1)])
def test_a_call_does_not_end_late(outcome: h.Granted | h.AcquireFailed) -> None:
    late = outcome._replace(at=8.1)

    assert not find(ExactOutcomes, [CALL, outcome])
    assert "timeout=5, ended" in message(ExactOutcomes, [CALL, late])
    assert not find(ExactOutcomes, [CALL, h.Paused(2, "a"), h.Resumed(6, "a"), late])


def test_a_call_that_should_have_ended_is_found_at_the_end() -> None:
    assert "had not ended" in message(ExactOutcomes, [CALL, h.End(8.1)])
    assert not find(ExactOutcomes, [CALL, h.End(8)])
    assert not find(ExactOutcomes, [CALL, h.Paused(1, "a"), h.End(100)])
    assert not find(ExactOutcomes, [started(0, "a", 1), h.End(100)]), "without a timeout it may wait"


def test_the_timeout_starts_with_the_call() -> None:
    call = started(100, "a", 1, timeout=5)

    assert not find(ExactOutcomes, [call, failed(105, "a", 1)])
    assert "after 4.9 s, before its timeout" in message(ExactOutcomes, [call, failed(104.9, "a", 1)])
    assert "timeout=5, ended after 8.5 s" in message(ExactOutcomes, [call, failed(108.5, "a", 1)])
    assert not find(ExactOutcomes, [call, h.End(108)])


@pytest.mark.parametrize("again", [[h.Resumed(1, "a")], [h.Crashed(1, "a"), h.Restarted(1, "a")]])
def test_a_resumed_client_is_checked_again(again: h.History) -> None:
    history: h.History = [h.Paused(0, "a"), *again, started(2, "a", 2, timeout=5)]

    assert "had not ended" in message(ExactOutcomes, [*history, h.End(20)])
    assert "timeout=5, ended" in message(ExactOutcomes, [*history, granted(20, "a", 2)])


def test_without_a_timeout_nothing_times_out() -> None:
    assert find(ExactOutcomes, [started(0, "a", 1), failed(1000, "a", 1)])
    assert not find(ExactOutcomes, [started(0, "a", 1), failed(1000, "a", 1, "unavailable")])


def test_timeout_0_does_not_queue() -> None:
    assert find(ExactOutcomes, [started(0, "a", 1, timeout=0), queued(0, "a", 1), failed(0, "a", 1)])
    assert not find(ExactOutcomes, [started(0, "a", 1, timeout=0.1), queued(0, "a", 1), failed(0.1, "a", 1)])


@pytest.mark.parametrize("client", ["a", None])
def test_a_timeout_as_busy_is_found_if_the_server_was_unreachable(client: str | None) -> None:
    cut = h.Unreachable(0, client)

    assert "was unreachable" in message(ExactOutcomes, [cut, CALL, failed(5, "a", 1)])
    assert not find(ExactOutcomes, [cut, CALL, failed(5, "a", 1, "unavailable")])
    assert not find(ExactOutcomes, [cut, h.Reachable(0, client), CALL, failed(5, "a", 1)])
    assert not find(ExactOutcomes, [h.Unreachable(0, "b"), CALL, failed(5, "a", 1)])


def test_a_timeout_as_busy_needs_an_answer_near_its_end() -> None:
    assert find(ExactOutcomes, [CALL, h.Unreachable(2.9, "a"), failed(5, "a", 1)])
    assert not find(ExactOutcomes, [CALL, h.Unreachable(3.1, "a"), failed(5, "a", 1)])
    assert not find(ExactOutcomes, [started(0, "a", 1, timeout=0), h.Unreachable(0.1, "a"), failed(0.2, "a", 1)])


# ── what is left on the server ───────────────────────────────────────────────────────────────────────────────────

SOON = Promises(leftover_max=10.0)


def remained(at: float, ticket: int | None = 1, *, is_holder: bool = True) -> h.Leftover:
    return h.Leftover(at, LOCK, "a", is_holder, ticket)


@pytest.mark.parametrize("ticket", [1, None])
@pytest.mark.parametrize("end", [released(2, "a", 1), lost(2, "a", 1), failed(2, "a", 1), h.Crashed(2, "a")])
def test_a_ticket_without_a_claim_is_removed_in_time(end: h.Event, ticket: int | None) -> None:
    assert not find(NothingLeft, [CALL, end, remained(12, ticket)], SOON)
    assert "no client has had a claim on it since 2 s" in message(
        NothingLeft, [CALL, end, remained(12.1, ticket)], SOON
    )


@pytest.mark.parametrize("ticket", [1, None])
def test_a_ticket_with_a_claim_may_stay(ticket: int | None) -> None:
    assert not find(NothingLeft, [CALL, remained(100, ticket, is_holder=False)], SOON)
    assert not find(NothingLeft, [CALL, granted(1, "a", 1), remained(100, ticket)], SOON)
    assert not find(NothingLeft, [CALL, h.Crashed(1, "b"), remained(100, ticket)], SOON)


def test_a_restarted_client_has_no_claim_on_tickets_of_the_dead_process() -> None:
    history: h.History = [CALL, h.Crashed(1, "a"), h.Restarted(1, "a"), started(2, "a", 2)]

    assert find(NothingLeft, [*history, remained(100, 1)], SOON)
    assert not find(NothingLeft, [*history, remained(100, 2)], SOON)


def test_a_ticket_without_a_call_is_found() -> None:
    assert "but no client has a claim on it" in message(NothingLeft, [remained(100, 7, is_holder=False)], SOON)
    assert find(NothingLeft, [CALL, remained(100, None)._replace(client="b")], SOON)
