"""The checker misses a grant during a minimum hold, or reports one that does not conflict."""

from __future__ import annotations

from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import MinimumHolds
from tests.unit.checking.histories import LOCK, check, find, granted, released, server_granted

LEASE = granted(0, "a", 1, deadline=6)._replace(min_hold=5.0)


def permit(event: h.Granted, limit: int = 2) -> h.Granted:
    return event._replace(exclusive=False, limit=limit)


def test_a_grant_before_the_end_of_a_minimum_hold_is_found() -> None:
    assert find(MinimumHolds, [LEASE, released(1, "a", 1), server_granted(4, "b", 2)])
    assert find(MinimumHolds, [LEASE, h.Crashed(1, "a"), server_granted(4, "b", 2)])
    assert not find(MinimumHolds, [LEASE, released(1, "a", 1), server_granted(5, "b", 2)])
    assert not find(MinimumHolds, [LEASE, h.StateLost(2, "lease", LOCK), server_granted(4, "b", 2)])
    assert check(MinimumHolds, [LEASE]).was_tested


def test_a_permit_is_free_if_fewer_than_the_limit_are_kept() -> None:
    first = permit(LEASE)
    second = permit(granted(0, "b", 2, deadline=6)._replace(min_hold=2.0))
    third = server_granted(3, "c", 3)._replace(exclusive=False, limit=2)

    assert not find(MinimumHolds, [first, second, third]), "the hold of b is over"
    assert find(MinimumHolds, [first, second, third._replace(at=1)])
    assert find(MinimumHolds, [first, server_granted(3, "c", 3)]), "an exclusive ticket conflicts with a permit"
