"""The checker misses a revocation request that its lease never receives, or that another lease receives."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import RevocationsReceived
from tests.unit.checking.histories import LOCK, check, find, granted, lost, message, released

PROMISES = Promises(revoke_max=5)
REVOCABLE = granted(1, "a", 1, fence=10)._replace(revocable=True)


def request(at: float, fence: int) -> h.History:
    return [h.RevokeStarted(at, "b", 9, LOCK, fence), h.RevokeEnded(at, "b", 9, LOCK, fence)]


def received(at: float, ticket: int = 1) -> h.RevokeReceived:
    return h.RevokeReceived(at, "a", ticket, LOCK)


def test_a_request_is_received_by_its_lease() -> None:
    history = [h.Healed(0), REVOCABLE, *request(2, 10), received(4), released(9, "a", 1)]

    assert check(RevocationsReceived, history, PROMISES).was_tested
    assert not find(RevocationsReceived, history, PROMISES)


@pytest.mark.parametrize("end", [h.End(9), released(9, "a", 1), lost(9, "a", 1)])
def test_a_request_that_is_never_received_is_found(end: h.Event) -> None:
    assert message(RevocationsReceived, [h.Healed(0), REVOCABLE, *request(2, 10), end], PROMISES) == (
        "a's lease of 'report' (fence 10) had a revocation request, and had not received it 7 s later"
    )


@pytest.mark.parametrize(
    "excuse",
    [
        [h.Healed(5), REVOCABLE._replace(at=5.0), *request(6, 10)],
        [REVOCABLE, *request(2, 10), h.Healed(6)],
        [h.Healed(0), REVOCABLE._replace(revocable=False), *request(2, 10)],
        [h.Healed(0), REVOCABLE, *request(2, 10), h.Crashed(3, "a")],
        [h.Healed(0), REVOCABLE, *request(2, 10), h.StateLost(3)],
        [h.Healed(0), REVOCABLE, *request(2, 9)],
        [h.Healed(0), REVOCABLE, *request(2, 10)[:1]],
    ],
    ids=["ended too early", "not healed", "not revocable", "crashed", "state lost", "older request", "not stored"],
)
def test_a_lease_that_cannot_receive_the_request_is_excused(excuse: h.History) -> None:
    assert not find(RevocationsReceived, [*excuse, h.End(9)], PROMISES)


def test_a_request_received_by_a_later_lease_is_found() -> None:
    assert message(RevocationsReceived, [*request(0, 9), REVOCABLE, received(2)]) == (
        "a's lease of 'report' (fence 10) received a request that was for fence 9"
    )
    assert "that no client made" in message(RevocationsReceived, [REVOCABLE, received(2)])


def test_an_older_held_lease_may_receive_the_request_too() -> None:
    assert not find(RevocationsReceived, [REVOCABLE, *request(2, 12), received(3)])


def test_a_request_that_is_received_twice_is_found() -> None:
    assert "twice" in message(RevocationsReceived, [REVOCABLE, *request(2, 10), received(3), received(4)])


def test_a_request_received_by_an_irrevocable_lease_is_found() -> None:
    assert "irrevocable lease" in message(
        RevocationsReceived, [REVOCABLE._replace(revocable=False), *request(2, 10), received(3)]
    )
