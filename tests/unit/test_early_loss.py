"""Hazard: a lease that is lost long before its deadline keeps its lock until that deadline, although no client has it.

One lock of a group is broken, so the leases of the others end before their ttl.
"""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.testing import World


@pytest.mark.parametrize(
    ("options", "kept_for"),
    [({"lock_delay": 10}, 10), ({"stop_margin": 10}, 10), ({"lock_delay": 10, "stop_margin": 10}, 20)],
)
def test_a_lease_that_is_lost_early_keeps_the_lock_for_its_margin_and_delay_from_the_loss_on(
    holdfast_world: World, options: dict[str, Any], kept_for: float
) -> None:
    client, other = holdfast_world.client(), holdfast_world.client()
    lease = client.lock_all(["a", "b"], ttl=600, on_lost="event", **options).acquire()
    assert lease is not None
    assert other.break_lock("a", fence=lease.fences["a"])
    with pytest.raises(holdfast.LockLost):
        lease.renew()

    holdfast_world.clock.advance(kept_for - 1)
    assert other.lock("b").acquire(timeout=0) is None
    holdfast_world.clock.advance(2)

    with other.lock("b", timeout=0):
        pass


def test_the_end_of_the_body_of_a_lost_lease_does_not_end_its_delay(holdfast_world: World) -> None:
    client, other = holdfast_world.client(), holdfast_world.client()

    with pytest.raises(holdfast.LockLost), client.lock_all(["a", "b"], ttl=600, lock_delay=10) as lease:
        other.break_lock("a", fence=lease.fences["a"])
        lease.renew()

    holdfast_world.clock.advance(9)
    assert other.lock("b").acquire(timeout=0) is None
    holdfast_world.clock.advance(2)
    with other.lock("b", timeout=0):
        pass
