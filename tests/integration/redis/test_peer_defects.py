"""Hazard: defects of other Redis locks for Python. Each was reproduced there and is tested here. Lost replies
(test_lost_replies.py), dead renewers (test_connections.py) and Clusters (test_cluster.py) have their own files.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean, take
from tests.support.processes import eventually, now
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server


@pytest.mark.parametrize("delay", [0.001, 0.01, 0.03])
async def test_20_cancelled_acquires_leave_no_key(delay: float, server: Server, proxy: Proxy) -> None:
    """redis-py, asyncio: each of the 20 left a key without a ttl."""
    async with holdfast.AsyncClient(proxy.url) as client:
        async with client.lock("warm-up"):
            pass
        proxy.delay(0.01)
        for _ in range(20):
            lock = client.lock("one", ttl=30)
            with contextlib.suppress(TimeoutError):
                lease = await asyncio.wait_for(lock.acquire(), delay)
                assert lease is not None
                await lease.release()
        proxy.delay(0)
        lease = await client.lock("one").acquire(timeout=10)
        assert lease is not None
        await lease.release()
    assert_free_and_clean(server, "one")


async def test_a_cancelled_release_frees_the_lock(server: Server, proxy: Proxy) -> None:
    """redis-py (#3847): the token is forgotten, the key stays."""
    async with holdfast.AsyncClient(proxy.url) as client, holdfast.AsyncClient(server.url) as other:
        for _ in range(10):
            lease = await client.lock("one", ttl=30).acquire(timeout=10)
            assert lease is not None
            proxy.delay(0.02)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lease.release(), 0.01)
            proxy.delay(0)
            async with other.lock("one", timeout=10) as after:
                assert after.fence > lease.fence
    assert_free_and_clean(server, "one")


async def test_a_lock_object_shared_by_tasks_keeps_their_leases_apart(server: Server) -> None:
    """redis-py, asyncio: the token belongs to the thread, so a late release of one task frees another task's lock."""
    async with holdfast.AsyncClient(server.url) as client, holdfast.AsyncClient(server.url) as other:
        lock = client.lock("one", ttl=3, renew=False)
        first = await lock.acquire()
        assert first is not None
        server.call("DEL", "holdfast:one")  # as if the lease had expired on the server
        second = await asyncio.create_task(lock.acquire(timeout=10))
        assert second is not None

        with pytest.raises(holdfast.LockLost):
            await first.release()

        assert second.held
        assert await other.lock("one").acquire(timeout=0) is None
        await second.release()
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("timeout", [0.3, 0.75])
def test_timeouts_and_ttls_can_be_fractions_of_a_second(
    timeout: float, server: Server, open_client: OpenClient
) -> None:
    """python-redis-lock: timeout=0.5 waits without end, expire=0.5 is refused by the server."""
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one", ttl=3.5))

    began = now()
    lease_of_other = other.lock("one").acquire(timeout=timeout)
    waited = now() - began

    assert lease_of_other is None
    assert timeout <= waited < timeout + 5
    assert server.call("PTTL", "holdfast:one") > 0
    lease.release()
    fractional = take(other.lock("one", ttl=0.75))
    assert 0 < server.call("PTTL", "holdfast:one") <= 750
    fractional.release()


@pytest.mark.parametrize("method", ["queue", "setnx", "getset"])
def test_a_slow_server_does_not_stretch_the_timeout(
    method: str, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    """sherlock: timeout=1 waited 4.3 s when replies took 300 ms, because it counted only its sleeps."""
    holder, slow = (open_client(f"{url}?method={method}") for url in (server.url, proxy.url))
    lease = take(holder.lock("one"))
    assert slow.lock("one").acquire(timeout=0) is None
    proxy.delay(0.15)

    began = now()
    lease_of_slow = slow.lock("one").acquire(timeout=1)
    waited = now() - began

    assert lease_of_slow is None
    assert 1 <= waited < 4
    lease.release()


def test_a_dropped_lease_object_is_not_released_silently(server: Server, open_client: OpenClient) -> None:
    """sherlock: dropping the last reference frees the lock in the middle of the section."""
    client, other = open_client(server.url), open_client(server.url)

    with pytest.warns(ResourceWarning, match="dropped without release"):
        take(client.lock("one", ttl=3))
        gc.collect()

    assert server.call("EXISTS", "holdfast:one") == 1
    assert other.lock("one").acquire(timeout=0) is None
    take(other.lock("one"), timeout=20).release()


def test_a_lost_lease_cannot_release_the_next_lease_of_its_lock_object(server: Server, open_client: OpenClient) -> None:
    client, other = open_client(server.url), open_client(server.url)
    lock = client.lock("one", ttl=30)
    first = take(lock)
    server.call("DEL", "holdfast:one")
    with pytest.raises(holdfast.LockLost):
        first.renew()

    second = take(lock, timeout=10)
    with pytest.raises(holdfast.LockLost):
        first.release()

    assert second.fence > first.fence
    assert second.held
    assert other.lock("one").acquire(timeout=0) is None
    second.release()


def test_every_lock_has_a_finite_ttl(server: Server, open_client: OpenClient) -> None:
    """sherlock: expire=None does not lock. redis-py, python-redis-lock: the lock never expires."""
    client = open_client(server.url)

    lease = take(client.lock("one"))

    assert 25_000 < server.call("PTTL", "holdfast:one") <= 30_000
    for endless in (0, float("inf"), float("nan")):
        with pytest.raises(holdfast.ConfigurationError):
            client.lock("one", ttl=endless)
    lease.release()


def test_a_release_that_failed_can_be_repeated(server: Server, proxy: Proxy, open_client: OpenClient) -> None:
    """redis-py: the token is cleared before the request is sent."""
    client = open_client(proxy.url)
    lease = take(client.lock("one"))

    proxy.refuse()
    with pytest.raises(holdfast.BackendError):
        lease.release()
    proxy.heal()

    with contextlib.suppress(holdfast.NotHeld):  # the keeper has released it already
        lease.release()
    eventually(lambda: "holdfast:one" not in server.all_keys())
