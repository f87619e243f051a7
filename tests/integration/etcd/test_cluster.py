"""Three members: holders and waiters when a member dies, hangs or is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.etcd.helpers import acquired, waiters_in_order, waiting
from tests.support.etcd.servers import Server, Trio
from tests.support.processes import eventually


@pytest.mark.parametrize("fail", [Server.kill, Server.stop], ids=["killed", "hung"])
def test_a_lease_and_a_waiter_survive_the_death_of_the_leader(
    trio: Trio, open_client: OpenClient, fail: Callable[[Server], None]
) -> None:
    leader = trio.leader()
    holder, waiter = open_client(trio.url_from(leader)), open_client(trio.url_from(leader))
    lease = acquired(holder, "kept", ttl=20)

    with waiting(waiter, "kept") as leases:
        fail(leader)
        began = time.monotonic()
        lease.renew()
        assert time.monotonic() - began < 15, "before the lease ends"
        assert open_client(trio.url).lock("kept").acquire(timeout=0) is None
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_member_that_hangs_uses_only_its_share_of_the_time(trio: Trio, open_client: OpenClient) -> None:
    hung = trio.followers()[0]
    client = open_client(trio.url_from(hung))
    with client.lock("a"):
        pass
    hung.stop()

    began = time.monotonic()
    lease = client.lock("b").acquire(timeout=3)

    assert lease is not None
    assert time.monotonic() - began < 3
    lease.release()


def test_no_lock_is_granted_and_the_holder_loses_its_lease_without_a_majority(
    trio: Trio, open_client: OpenClient
) -> None:
    holder, other = open_client(trio.url), open_client(trio.url)
    lease = acquired(holder, "a", ttl=4)
    for server in trio.followers():
        server.kill()

    with pytest.raises(holdfast.BackendError):
        other.lock("b", ttl=4).acquire(timeout=1)
    assert lease.wait_lost(10)
    with pytest.raises(holdfast.LockLost):
        lease.check()

    trio.heal()
    after = acquired(other, "a")
    assert after.fence > lease.fence
    after.release()


def test_fifty_waiters_are_granted_after_all_members_are_killed_and_restarted(
    trio: Trio, open_client: OpenClient
) -> None:
    lease = acquired(open_client(trio.url), "crowded", ttl=30)

    with waiters_in_order(lambda: open_client(trio.url), "crowded", 50) as fences:
        for server in trio.servers:
            server.kill()
        trio.heal()
        lease.renew()
        lease.release()

    assert fences == sorted(set(fences))
    eventually(lambda: trio.servers[0].keys("holdfast/crowded/") == [])
