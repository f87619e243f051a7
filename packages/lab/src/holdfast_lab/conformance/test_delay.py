"""lock_delay: after a loss no client acquires the lock before the delay is over; after a release there is no delay."""

from __future__ import annotations

import time
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Lab

SHORT, DELAY = 0.3, 0.6  # seconds


pytestmark = pytest.mark.needs(Primitive.LOCK_DELAY)


async def test_no_client_acquires_the_lock_during_the_delay_after_a_loss(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=SHORT, lock_delay=DELAY, renew=False).acquire())
    ends = time.monotonic() + lease.remaining  # read in this order, this is no later than its deadline
    assert lease.remaining <= SHORT

    assert await holder(lambda _: lease.wait_lost(60))
    successor = await other(lambda client: client.lock("a").acquire(timeout=60))

    assert time.monotonic() >= ends + DELAY
    assert successor.fence > lease.fence


async def test_a_lost_lease_keeps_its_delay_after_a_release_and_after_close(lab: Lab) -> None:
    # On ZooKeeper the delay ends with the session of the client that lost the lease.
    options: dict[str, Any] = {"session_timeout": 3} if lab.url.startswith("zookeeper") else {}
    holder, other = lab.actor(**options), lab.actor()
    lock = holder.client.lock("a", ttl=SHORT, lock_delay=DELAY, renew=False)
    lease = await holder(lambda _: lock.acquire())
    ends = time.monotonic() + lease.remaining
    assert await holder(lambda _: lease.wait_lost(60))

    with pytest.raises(holdfast.LockLost):
        await holder(lambda _: lease.release())
    await holder(lambda client: client.close())
    await other(lambda client: client.lock("a").acquire(timeout=60))

    assert time.monotonic() >= ends + DELAY


async def test_after_a_release_there_is_no_delay(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=30, lock_delay=5).acquire())
    assert 0 < lease.remaining <= 30

    await holder(lambda _: lease.renew())
    assert lease.remaining <= 30
    await holder(lambda _: lease.release())

    assert await other(lambda client: client.lock("a").acquire(timeout=0))
