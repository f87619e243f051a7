"""Hazard: a failover. The new primary may lack the last writes of the old one, and the old one may accept writes for a
while: two clients can hold a lock at the same time, and only growing fences protect the resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_lost, await_replicated, take, waiting
from tests.support.processes import eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.proxy import Proxy
from tests.support.redis.topologies import Pair, Watched
from tests.support.server_process import free_ports


@pytest.fixture
def lagging(binary: Binary, tmp_path: Path) -> Iterator[tuple[Watched, Proxy]]:
    """The replica gets its data through a proxy, which can make it miss the last writes."""
    ports = free_ports(2)
    with Proxy(ports[0]) as link, Watched(binary, tmp_path, ports=ports, link=link.port) as watched:
        yield watched, link


async def test_holder_and_waiter_keep_what_was_replicated_when_the_primary_dies(
    watched: Watched, open_client: OpenClient
) -> None:
    threads = open_client(watched.url)
    async with holdfast.AsyncClient(watched.url) as tasks:
        lease = await tasks.lock("one", ttl=30).acquire()
        assert lease is not None
        pending = await asyncio.to_thread(waiting, threads, "one", timeout=60)
        await asyncio.to_thread(await_replicated, watched.primary, watched.replica)

        watched.primary.kill()
        await asyncio.to_thread(watched.await_other_primary, watched.primary.port)

        assert lease.held
        assert not pending.done()
        await lease.release()
        after = await asyncio.to_thread(pending.result, 30)
        assert after.fence > lease.fence
        assert await tasks.lock("one").acquire(timeout=0) is None
        after.release()


def test_fences_grow_in_a_split_brain_when_a_stopped_primary_resumes(
    lagging: tuple[Watched, Proxy], open_client: OpenClient
) -> None:
    watched, link = lagging
    holder = open_client(watched.url)
    take(holder.lock("one")).release()
    await_replicated(watched.primary, watched.replica)
    link.lose_replies()  # the replica gets no more writes of its primary
    old = take(holder.lock("one", ttl=5))

    watched.primary.stop()
    watched.await_other_primary(watched.primary.port)
    new = take(open_client(watched.url).lock("one", ttl=30), timeout=10)
    watched.primary.resume()

    # Both may hold the lock now, but a resource that knows the new fence refuses the old one.
    assert new.fence > old.fence
    on_primary, on_replica = open_client(watched.primary.url), open_client(watched.replica.url)
    fences = []
    for number in range(20):  # the two primaries take turns
        lease = take((on_primary, on_replica)[number % 2].lock("two"), timeout=0)
        fences.append(lease.fence)
        lease.release()
    assert fences == sorted(set(fences))
    assert old.wait_lost(30)  # at its deadline, or when Sentinel has demoted the old primary
    new.renew()
    new.release()


@pytest.mark.slow
def test_fences_grow_after_20_failovers_to_a_replica_without_the_last_writes(
    binary: Binary, tmp_path: Path, open_client: OpenClient
) -> None:
    fences = []
    for number in range(20):
        ports = free_ports(2)
        with (
            Proxy(ports[0]) as link,
            Pair(binary, tmp_path / str(number), ports=ports, link=link.port) as pair,
            Proxy(ports[0]) as service,  # the clients' address of the primary, before and after the failover
        ):
            old, new = holdfast.Client(service.url), holdfast.Client(service.url)
            take(old.lock("one")).release()
            await_replicated(pair.primary, pair.replica)
            link.lose_replies()
            for _ in range(number):  # leases that never reach the replica
                take(old.lock("one")).release()
            before = take(old.lock("one"))

            pair.primary.kill()
            pair.replica.call("REPLICAOF", "NO", "ONE")
            service.lead_to(pair.replica.port)
            after = take(new.lock("one"), timeout=10)

            fences.append((before.fence, after.fence))
            assert_lost(before)
            after.release()
            old.close()
            new.close()

    assert [after > before for before, after in fences] == [True] * 20


def test_sentinel_promotes_a_replica_that_missed_the_grant_and_the_next_fence_is_greater(
    lagging: tuple[Watched, Proxy], open_client: OpenClient
) -> None:
    watched, link = lagging
    holder, other = open_client(watched.url), open_client(watched.url)
    take(holder.lock("one")).release()
    await_replicated(watched.primary, watched.replica)
    link.lose_replies()
    old = take(holder.lock("one", ttl=30))

    watched.primary.kill()
    watched.await_other_primary(watched.primary.port)
    new = take(other.lock("one"), timeout=20)

    assert new.fence > old.fence
    with pytest.raises(holdfast.LockLost):
        old.release()
    new.renew()
    new.release()


def test_replicas_option_detects_a_primary_without_replicas(
    lagging: tuple[Watched, Proxy], open_client: OpenClient
) -> None:
    watched, link = lagging
    client = open_client(f"{watched.url}?replicas=1&replicas_timeout=1")
    take(client.lock("one")).release()

    backend = Verbs(f"{watched.url}?replicas=1&replicas_timeout=1")
    assert backend.advance_register("period", 1)

    link.lose_replies()
    with pytest.raises(holdfast.BackendError):
        client.lock("one").acquire(timeout=0)
    with pytest.raises(holdfast.BackendError):
        client.lock_all(["one", "two"]).acquire(timeout=0)
    with pytest.raises(holdfast.OutcomeUnknown, match="replicas confirmed"):
        backend.advance_register("period", 2)

    eventually(lambda: not {"holdfast:one", "holdfast:two"} & watched.primary.all_keys())
    backend.close()


def test_the_error_names_sentinels_that_do_not_know_the_service_or_are_down(
    watched: Watched, open_client: OpenClient
) -> None:
    hosts = watched.url.removeprefix("redis+sentinel://").partition("/")[0]
    with pytest.raises(holdfast.HoldfastError, match="unknown-service"):
        open_client(f"redis+sentinel://{hosts}/unknown-service/0").lock("one").acquire(timeout=0)

    for sentinel in watched.sentinels[:2]:
        sentinel.kill()
    take(open_client(watched.url).lock("one"), timeout=0).release()  # one Sentinel that answers is enough
    watched.sentinels[2].kill()
    with pytest.raises(holdfast.BackendUnavailable):
        open_client(watched.url).lock("one").acquire(timeout=0)
