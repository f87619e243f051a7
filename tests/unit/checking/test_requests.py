"""A request to let go that its lease never hears, or that another one does."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import RequestsHeard
from tests.unit.checking.stories import LOCK, check, found, granted, lost, released, what

PROMISES = Promises(revoke_max=5)
LISTENS = granted(1, "a", 1, fence=10)._replace(revocable=True)


def request(at: float, fence: int) -> h.History:
    return [h.RevokeStarted(at, "b", 9, LOCK, fence), h.RevokeEnded(at, "b", 9, LOCK, fence)]


def heard(at: float, ticket: int = 1) -> h.RevokeReceived:
    return h.RevokeReceived(at, "a", ticket, LOCK)


def test_a_request_is_heard_by_the_lease_that_it_is_for() -> None:
    history = [h.Healed(0), LISTENS, *request(2, 10), heard(4), released(9, "a", 1)]

    assert check(RequestsHeard, history, PROMISES).was_tested
    assert not found(RequestsHeard, history, PROMISES)


@pytest.mark.parametrize("end", [h.End(9), released(9, "a", 1), lost(9, "a", 1)])
def test_a_request_that_is_never_heard_is_found(end: h.Event) -> None:
    assert what(RequestsHeard, [h.Healed(0), LISTENS, *request(2, 10), end], PROMISES) == (
        "a's lease of 'report' (fence 10) was asked to let go, and had not heard of it 7 s later"
    )


@pytest.mark.parametrize(
    "excuse",
    [
        [h.Healed(5), LISTENS._replace(at=5.0), *request(6, 10)],
        [LISTENS, *request(2, 10), h.Healed(6)],
        [h.Healed(0), LISTENS._replace(revocable=False), *request(2, 10)],
        [h.Healed(0), LISTENS, *request(2, 10), h.Crashed(3, "a")],
        [h.Healed(0), LISTENS, *request(2, 10), h.StateLost(3)],
        [h.Healed(0), LISTENS, *request(2, 9)],
        [h.Healed(0), LISTENS, *request(2, 10)[:1]],
    ],
    ids=["it did not live long enough", "not healed", "no ear", "crashed", "forgotten", "an older one's", "not made"],
)
def test_a_lease_that_cannot_have_heard_need_not(excuse: h.History) -> None:
    assert not found(RequestsHeard, [*excuse, h.End(9)], PROMISES)


def test_a_request_is_not_heard_by_a_later_lease() -> None:
    assert what(RequestsHeard, [*request(0, 9), LISTENS, heard(2)]) == (
        "a's lease of 'report' (fence 10) heard a request that was for fence 9"
    )
    assert "that nobody made" in what(RequestsHeard, [LISTENS, heard(2)])


def test_an_older_lease_that_lives_may_hear_of_it_too() -> None:
    assert not found(RequestsHeard, [LISTENS, *request(2, 12), heard(3)])


def test_it_is_told_once() -> None:
    assert "twice" in what(RequestsHeard, [LISTENS, *request(2, 10), heard(3), heard(4)])


def test_a_lease_without_an_ear_hears_nothing() -> None:
    assert "no ear" in what(RequestsHeard, [LISTENS._replace(revocable=False), *request(2, 10), heard(3)])
