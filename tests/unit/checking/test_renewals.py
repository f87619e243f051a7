"""The checker misses a lease that expires although it could be renewed, or is renewed after the server removed it."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import TrueRenewals
from tests.unit.checking.histories import LOCK, find, granted, lost, message, removed, server_granted

HEALED = h.Healed(10)
LEASE = granted(9, "a", 1)._replace(renews=True)


def renewed(at: float, client: str, ticket: int) -> h.Renewed:
    return h.Renewed(at, client, ticket, LOCK, at + 30)


def test_a_lease_does_not_expire_in_a_healed_world() -> None:
    assert message(TrueRenewals, [LEASE, HEALED, lost(20, "a", 1)]) == (
        "a's lease of 'report' ran out 10 s after the world was healed"
    )
    assert not find(TrueRenewals, [LEASE, HEALED, lost(11, "a", 1)]), "too soon after the healing"
    assert not find(TrueRenewals, [LEASE._replace(renews=False), HEALED, lost(20, "a", 1)])


def test_a_lease_that_the_server_removed_may_be_lost() -> None:
    assert not find(TrueRenewals, [LEASE, HEALED, removed(15, "a", 1), lost(20, "a", 1)])


@pytest.mark.parametrize(("state_kind", "is_excused"), [("data", True), ("lease", True), ("clock", False)])
def test_a_lease_from_before_a_state_loss_may_be_lost_at_any_later_renewal(
    state_kind: h.StateKind, *, is_excused: bool
) -> None:
    state_lost = h.StateLost(9.5, state_kind)

    assert bool(find(TrueRenewals, [LEASE, state_lost, HEALED, lost(20, "a", 1)])) != is_excused
    assert find(TrueRenewals, [LEASE, state_lost._replace(lock="other"), HEALED, lost(20, "a", 1)])
    after = granted(9.7, "b", 2)._replace(renews=True)
    assert find(TrueRenewals, [LEASE, state_lost, after, HEALED, lost(20, "b", 2)])


def test_a_grant_in_flight_during_a_state_loss_counts_as_earlier() -> None:
    history: h.History = [server_granted(8, "a", 1), h.StateLost(8.5), LEASE, HEALED, lost(20, "a", 1)]

    assert not find(TrueRenewals, history)


def test_one_renewal_may_be_in_flight_when_the_server_removes_the_ticket_but_not_two() -> None:
    history: h.History = [LEASE, removed(12, "a", 1), renewed(13, "a", 1)]

    assert not find(TrueRenewals, history)
    assert "although the server had removed it" in message(TrueRenewals, [*history, renewed(14, "a", 1)])
    assert not find(TrueRenewals, [*history, server_granted(13.5, "a", 1), renewed(14, "a", 1)])


GROUP = [LEASE._replace(group=1), LEASE._replace(ticket=2, lock="other", group=1)]


def lost_together(at: float) -> h.History:
    """The lease that ended by itself is recorded last, after those that are lost with it."""
    return [lost(at, "a", 2)._replace(lock="other"), lost(at, "a", 1)]


def test_a_group_is_lost_when_the_server_has_removed_one_of_its_leases() -> None:
    removal = removed(15, "a", 1)

    assert find(TrueRenewals, [*GROUP, HEALED, *lost_together(20)])
    assert not find(TrueRenewals, [*GROUP, HEALED, removal, *lost_together(20)])
    assert find(TrueRenewals, [*GROUP, HEALED, removal._replace(ticket=3), *lost_together(20)]), "not of this group"


def test_a_group_may_be_lost_at_any_later_renewal_when_one_of_its_leases_is_from_before_a_state_loss() -> None:
    lease_lost = h.StateLost(9.5, "lease", LOCK)

    assert not find(TrueRenewals, [*GROUP, lease_lost, HEALED, *lost_together(20)])
    assert find(TrueRenewals, [*GROUP, lease_lost._replace(lock="third"), HEALED, *lost_together(20)])
    ungrouped = GROUP[1]._replace(group=None)
    assert find(TrueRenewals, [GROUP[0], ungrouped, lease_lost, HEALED, *lost_together(20)]), "not of a group"


def test_a_group_may_be_lost_when_one_of_its_locks_was_broken_during_the_wait_for_the_next() -> None:
    lease_lost = h.StateLost(8.5, "lease", LOCK)
    history: h.History = [server_granted(8, "a", 1), lease_lost, *GROUP, HEALED, *lost_together(20)]

    assert not find(TrueRenewals, history)
    assert find(TrueRenewals, [server_granted(8, "a", 1), lease_lost._replace(lock="third"), *history[2:]])
