"""Hazard: a cache loses data. A holder must learn of it at its next renewal, and must not harm the next holder."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import holdfast
from holdfast.backends.memcached.protocol.clock_check import SILENCE_MAX
from tests.integration.conftest import OpenClient
from tests.integration.memcached.conftest import StartServer
from tests.integration.memcached.helpers import item, take
from tests.support.memcached.servers import Server
from tests.support.processes import eventually


def flush(server: Server) -> None:
    assert server.call(b"flush_all\r\n").code == "OK"


@pytest.mark.parametrize("forget", [flush, Server.restart], ids=["flush_all", "restart"])
def test_a_holder_learns_of_the_loss_of_its_item_at_its_next_renewal(
    server: Server, open_client: OpenClient, forget: object
) -> None:
    lease = take(open_client(server.url), "a")
    assert callable(forget)

    forget(server)

    assert lease.wait_lost(30)
    with pytest.raises(holdfast.LockLost, match="evicted, or the server was restarted"):
        lease.check()


@pytest.mark.parametrize("forget", [flush, Server.restart], ids=["flush_all", "restart"])
def test_the_next_holder_has_a_greater_fence_and_is_not_disturbed(
    server: Server, open_client: OpenClient, forget: object
) -> None:
    old, new = open_client(server.url), open_client(server.url)
    stale = take(old, "a", ttl=30)
    first_uptime = int(server.stats()["uptime"])
    assert callable(forget)
    if forget is Server.restart:  # fences of two runs that start in the same second could overlap
        eventually(lambda: int(server.stats()["uptime"]) > first_uptime + 1)

    forget(server)
    fresh = take(new, "a", ttl=30)

    # A restarted server reuses versions: the version that the stale holder knows belongs to the other holder now.
    with pytest.raises(holdfast.LockLost):
        stale.release()
    assert fresh.fence > stale.fence
    assert [holder.fence for holder in new.inspect("a").holders] == [fresh.fence]
    fresh.renew()
    fresh.release()
    assert item(server, "a").code == "EN"


def test_a_renewal_by_a_stale_holder_changes_nothing(server: Server, open_client: OpenClient) -> None:
    stale = take(open_client(server.url), "a", ttl=30)
    flush(server)
    fresh = take(open_client(server.url), "a", ttl=30)
    before = item(server, "a")

    with pytest.raises(holdfast.LockLost):
        stale.renew()

    assert replace(item(server, "a"), seconds_left=0) == replace(before, seconds_left=0), (
        "the same version of the same item"
    )
    fresh.release()


def test_an_evicted_lock_is_lost_and_the_client_warns_of_evictions(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("-m", "2")
    client = open_client(server.url)
    assert not client.warnings
    lease = take(client, "a", ttl=30)
    size = len(item(server, "a").value)

    with (
        server.connect() as connection
    ):  # items of the same size as the lock's, until the lock is the oldest and is evicted
        for number in range(200):
            stores = (b"ms other-%d-%d %d T0 q\r\n%b\r\n" % (number, count, size, b"x" * size) for count in range(500))
            connection.call(b"".join(stores) + b"mn\r\n")
            if number % 40 == 39 and connection.call(b"mg holdfast:a s\r\n").code == "EN":
                break
    assert int(server.stats()["evictions"]) > 0

    with pytest.raises(holdfast.LockLost):
        lease.renew()
    time.sleep(2 * SILENCE_MAX)  # after which the client requests its stats
    take(client, "b").release()
    assert "has evicted" in client.warnings[0]


def test_a_lease_is_broken_only_by_its_fence(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    lease = take(client, "a")

    assert not client.break_lock("a", fence=lease.fence + 1)
    lease.renew()  # this changes the version of the item, not its fence
    assert client.break_lock("a", fence=lease.fence)

    assert lease.wait_lost(30)
    assert not client.break_lock("a", fence=lease.fence)
