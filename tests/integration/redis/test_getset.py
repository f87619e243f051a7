"""Hazard: a renewal with a long ttl reports a short lease of `method=getset` as expired before its end."""

from __future__ import annotations

import time

import holdfast
from tests.support.redis import shared as redis

TTL = 0.45  # less than the margin of a long ttl
ATTEMPTS = 100


def test_a_short_lease_can_be_renewed_with_a_long_ttl() -> None:
    with holdfast.Client(redis.fresh_url(method="getset")) as client:
        for _ in range(ATTEMPTS):  # on a busy machine the lease may end before it is renewed
            started = time.monotonic()
            with client.lock("a", ttl=TTL, renew=False, on_lost="event") as lease:
                try:
                    lease.renew(ttl=30)
                except holdfast.LockLost:
                    is_slow = time.monotonic() - started > TTL / 2
                else:
                    assert lease.remaining > TTL
                    return
            assert is_slow, "the lease had time left"
    raise AssertionError("the machine is too slow for this test")
