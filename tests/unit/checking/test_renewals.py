"""A lease that runs out although it could have been renewed, or lives on although the server has let go of it."""

from __future__ import annotations

import pytest

from holdfast.checking import history as h
from holdfast.checking.checkers import TrueRenewals
from tests.unit.checking.stories import LOCK, admitted, found, granted, left, lost, what

HEALED = h.Healed(10)
LEASE = granted(9, "a", 1)._replace(renews=True)


def renewed(at: float, client: str, ticket: int) -> h.Renewed:
    return h.Renewed(at, client, ticket, LOCK, at + 30)


def test_a_lease_does_not_run_out_in_a_healed_world() -> None:
    assert what(TrueRenewals, [LEASE, HEALED, lost(20, "a", 1)]) == (
        "a's lease of 'report' ran out 10 s after the world was healed"
    )
    assert not found(TrueRenewals, [LEASE, HEALED, lost(11, "a", 1)]), "too soon after the healing"
    assert not found(TrueRenewals, [LEASE._replace(renews=False), HEALED, lost(20, "a", 1)])


def test_a_lease_that_the_server_has_let_go_of_may_be_lost() -> None:
    assert not found(TrueRenewals, [LEASE, HEALED, left(15, "a", 1), lost(20, "a", 1)])


@pytest.mark.parametrize(("what_forgot", "is_excused"), [("data", True), ("lease", True), ("clock", False)])
def test_a_lease_from_before_the_server_forgot_may_be_lost_at_any_later_look(
    what_forgot: h.StateKind, *, is_excused: bool
) -> None:
    forgot = h.StateLost(9.5, what_forgot)

    assert bool(found(TrueRenewals, [LEASE, forgot, HEALED, lost(20, "a", 1)])) != is_excused
    assert found(TrueRenewals, [LEASE, forgot._replace(lock="other"), HEALED, lost(20, "a", 1)])
    after = granted(9.7, "b", 2)._replace(renews=True)
    assert found(TrueRenewals, [LEASE, forgot, after, HEALED, lost(20, "b", 2)])


def test_a_grant_that_was_on_its_way_when_the_server_forgot_counts_as_one_from_before() -> None:
    history: h.History = [admitted(8, "a", 1), h.StateLost(8.5), LEASE, HEALED, lost(20, "a", 1)]

    assert not found(TrueRenewals, history)


def test_one_renewal_may_be_on_its_way_when_the_server_lets_go_and_no_second_one() -> None:
    history: h.History = [LEASE, left(12, "a", 1), renewed(13, "a", 1)]

    assert not found(TrueRenewals, history)
    assert "although the server had let go of it" in what(TrueRenewals, [*history, renewed(14, "a", 1)])
    assert not found(TrueRenewals, [*history, admitted(13.5, "a", 1), renewed(14, "a", 1)])
