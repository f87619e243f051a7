"""The checker misses a grant during the delay after a loss, when the former holder may still be working."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import LockDelays
from tests.unit.checking.histories import LOCK, check, find, granted, lost, message, released, server_granted

LEASE = granted(0, "a", 1, deadline=6)._replace(delay=3.0)


def test_a_grant_before_the_end_of_the_delay_is_found() -> None:
    assert message(LockDelays, [LEASE, lost(6, "a", 1), server_granted(8, "b", 2)]) == (
        "b was granted 'report' 2 s after a's lease of it had ended, in its delay of 3 s"
    )
    assert not find(LockDelays, [LEASE, lost(6, "a", 1), server_granted(9, "b", 2)])
    assert check(LockDelays, [LEASE]).was_tested


def test_a_delay_may_be_short_by_the_drift_of_clocks() -> None:
    history: h.History = [LEASE, lost(6, "a", 1), server_granted(8.98, "b", 2)]

    assert find(LockDelays, history)
    assert not find(LockDelays, history, Promises(drift=0.01))


def test_the_delay_starts_at_the_end_of_the_belief() -> None:
    renewed: h.History = [LEASE, h.Renewed(3, "a", 1, LOCK, 9)]

    assert find(LockDelays, [LEASE, lost(2, "a", 1), server_granted(4, "b", 2)])
    assert not find(LockDelays, [LEASE, lost(2, "a", 1), server_granted(5.5, "b", 2)])
    assert find(LockDelays, [*renewed, lost(9, "a", 1), server_granted(11, "b", 2)])
    assert find(LockDelays, [LEASE, h.Crashed(1, "a"), server_granted(8, "b", 2)])
    assert find(LockDelays, [LEASE, server_granted(8, "b", 2)])


@pytest.mark.parametrize("end", [released(2, "a", 1), h.StateLost(2, "lease", LOCK), h.StateLost(2, "data")])
def test_a_lease_has_no_delay_when_it_was_released_or_lost_with_state(end: h.Event) -> None:
    assert not find(LockDelays, [LEASE, end, server_granted(2.5, "b", 2), lost(2.6, "a", 1), server_granted(4, "c", 3)])


def test_a_clock_that_went_back_ends_no_delay() -> None:
    assert find(LockDelays, [LEASE, h.StateLost(2, "clock"), lost(6, "a", 1), server_granted(8, "b", 2)])


def test_a_grant_that_does_not_conflict_is_allowed_during_the_delay() -> None:
    shared = LEASE._replace(exclusive=False, limit=None)
    reader = server_granted(8, "b", 2)._replace(exclusive=False, limit=None)
    owned, same_owner = LEASE._replace(owner="x"), server_granted(8, "b", 2)._replace(owner="x")

    assert not find(LockDelays, [shared, lost(6, "a", 1), reader])
    assert not find(LockDelays, [owned, lost(6, "a", 1), same_owner])
    assert find(LockDelays, [shared, lost(6, "a", 1), server_granted(8, "b", 2)])
    assert find(LockDelays, [owned, lost(6, "a", 1), same_owner._replace(owner="y")])


def test_client_grants_are_checked_without_events_of_the_server() -> None:
    without_server_events = Promises(sees_server=False)

    assert find(LockDelays, [LEASE, lost(6, "a", 1), granted(8, "b", 2)], without_server_events)
    assert not find(LockDelays, [LEASE, lost(6, "a", 1), granted(9.1, "b", 2)], without_server_events)


def test_a_grant_on_the_server_does_not_count_when_the_client_decides() -> None:
    promises = Promises(server_decides=False)

    assert not find(LockDelays, [LEASE, lost(6, "a", 1), server_granted(8, "b", 2)], promises)
    assert find(LockDelays, [LEASE, lost(6, "a", 1), server_granted(8, "b", 2), granted(8, "b", 2)], promises)
