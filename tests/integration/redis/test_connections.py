"""Hazard: a connection of a client is closed (`CLIENT KILL`, an idle timeout, a firewall), and a lease, a queue entry
or a subscription is lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from statistics import median

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, take
from tests.support.processes import eventually, now
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server

IDLE = 0.3  # seconds: more than IDLE_CHECK, after which a connection is checked before its next use


def kill_clients(server: Server, *kinds: str) -> None:
    for kind in kinds:
        server.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def kill_all_clients(server: Server) -> None:
    """Kill all connections, and wait until the clients check their connections before the next use."""
    kill_clients(server, "normal", "pubsub")
    time.sleep(IDLE)


def test_a_holder_whose_connections_are_killed_keeps_its_lease_and_releases_it(
    server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one", ttl=3))

    kill_all_clients(server)

    assert not lease.wait_lost(4)
    kill_all_clients(server)
    lease.release()
    after = take(other.lock("one"), timeout=0)
    assert after.fence > lease.fence
    after.release()


def test_an_idle_client_continues_when_its_connections_were_killed(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    take(client.lock("one")).release()

    kill_all_clients(server)
    lease = take(client.lock("one"), timeout=0)
    kill_all_clients(server)
    lease.renew()
    kill_all_clients(server)
    lease.release()

    assert_free_and_clean(server, "one")


async def test_an_idle_asyncio_client_continues_when_its_connections_were_killed(server: Server) -> None:
    async with holdfast.AsyncClient(server.url) as client:
        for _ in range(3):
            lease = await client.lock("one").acquire(timeout=0)
            assert lease is not None
            await asyncio.to_thread(kill_all_clients, server)
            await lease.renew()
            await asyncio.to_thread(kill_all_clients, server)
            await lease.release()
            await asyncio.to_thread(kill_all_clients, server)

    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("kinds", [("normal",), ("pubsub",), ("normal", "pubsub")], ids=["normal", "pubsub", "both"])
def test_a_waiter_whose_connections_are_killed_is_handed_the_lock_promptly_afterwards(
    kinds: tuple[str, ...], server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(server.url), open_client(server.url)
    gaps = []

    for _ in range(5):
        lease = take(holder.lock("one"))
        pending = acquiring(waiter.lock("one"))
        await_waiters(holder, "one", 1)
        eventually(lambda: len(server.subscribers()) == 1)
        kill_clients(server, *kinds)
        eventually(lambda: len(server.subscribers()) == 1)
        await_waiters(holder, "one", 1)
        released_at = now()
        lease.release()
        handed = pending.result()
        gaps.append(now() - released_at)
        with contextlib.suppress(holdfast.OutcomeUnknown):  # on a killed connection: the client repeats it
            handed.release()

    # A notification woke the waiter. With polls once a second the median would be 0.5 s.
    assert median(gaps) < 0.25, gaps


async def test_an_asyncio_waiter_whose_connections_are_killed_is_handed_the_lock(
    server: Server, open_client: OpenClient
) -> None:
    holder = open_client(server.url)
    async with holdfast.AsyncClient(server.url) as waiter:
        for _ in range(3):
            lease = await asyncio.to_thread(take, holder.lock("one"))
            pending = asyncio.create_task(waiter.lock("one").acquire(timeout=30))
            while len((await waiter.inspect("one")).waiters) < 1:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(kill_all_clients, server)
            await asyncio.to_thread(lease.release)
            after = await pending
            assert after is not None
            await after.release()

    assert_free_and_clean(server, "one")


def test_a_client_raises_at_once_when_its_server_is_gone_and_works_when_it_is_back(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server()
    client = open_client(server.url)
    take(client.lock("one")).release()

    server.kill()
    began = now()
    with pytest.raises(holdfast.BackendUnavailable):
        client.lock("one").acquire(timeout=20)
    ended = now()
    server.start()

    assert ended - began < 10
    take(client.lock("one"), timeout=0).release()


def test_a_client_does_not_hang_when_its_server_is_stopped(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server()
    client = open_client(f"{server.url}?io_timeout=1")
    take(client.lock("one")).release()

    server.stop()
    began = now()
    with pytest.raises(holdfast.BackendError):
        client.lock("one").acquire(timeout=0)
    ended = now()
    server.resume()

    assert ended - began < 10
    eventually(lambda: "holdfast:one" not in server.all_keys())
    take(client.lock("one")).release()


async def test_a_task_does_not_hang_when_its_server_is_stopped(start_server: StartServer) -> None:
    server = start_server()
    async with holdfast.AsyncClient(f"{server.url}?io_timeout=0.5") as client:
        lease = await client.lock("one").acquire()
        assert lease is not None

        server.stop()
        began = now()
        with pytest.raises(holdfast.BackendError):
            await client.inspect("one")
        ended = now()
        server.resume()

        assert ended - began < 4  # the default of the option is 5
        await lease.release()


def test_an_unreachable_server_raises_within_the_connect_timeout(open_client: OpenClient) -> None:
    # 192.0.2.0/24 is for documentation (RFC 5737): no host answers there, not even with a refusal.
    began = now()
    with pytest.raises(holdfast.BackendUnavailable, match=r"192\.0\.2\.1"):
        open_client("redis://192.0.2.1:6379/0?connect_timeout=1").lock("one").acquire(timeout=60)

    assert now() - began < 10


def test_an_outage_shorter_than_the_lease_costs_nothing(server: Server, proxy: Proxy, open_client: OpenClient) -> None:
    """python-redis-lock's renewal thread dies at its first ConnectionError."""
    holder, waiter = open_client(proxy.url), open_client(proxy.url)
    lease = take(holder.lock("one", ttl=6))
    pending = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)

    proxy.refuse()
    time.sleep(2.5)  # a renewal fails during the outage, and must be repeated
    proxy.heal()

    assert not lease.wait_lost(4)  # later than the deadline before the outage
    lease.release()
    pending.result().release()


def test_an_outage_longer_than_the_lease_is_reported_as_a_loss_before_another_grant(
    server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    lost_at: list[float] = []
    holder, other = open_client(proxy.url), open_client(server.url)
    lease = take(holder.lock("one", ttl=3, on_lost=lambda _: lost_at.append(now())))
    pending = acquiring(other.lock("one"))
    await_waiters(other, "one", 1)

    proxy.refuse()
    after = pending.result()
    granted_at = now()

    assert after.fence > lease.fence
    eventually(lambda: lost_at != [])
    assert lost_at[0] < granted_at
    with pytest.raises(holdfast.LockLost):
        lease.release()
    proxy.heal()
    after.release()
