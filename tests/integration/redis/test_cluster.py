"""Hazard: the primary of a lock's slot dies, or the slot is moved key by key to another one, while the lock has a
holder and waiters.
"""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import (
    acquiring,
    assert_free_and_clean,
    await_replicated,
    await_waiters,
    in_background,
    take,
    waiting,
)
from tests.support.processes import eventually
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

KEY = "holdfast:one"


def elsewhere(cluster: Cluster, owner: Server) -> Server:
    """A primary other than the owner."""
    return next(server for server in cluster.servers[:3] if server is not owner)


async def test_holder_and_waiter_keep_what_was_replicated_when_the_owner_of_the_slot_dies(
    cluster: Cluster, open_client: OpenClient
) -> None:
    threads = open_client(cluster.url)
    async with holdfast.AsyncClient(cluster.url) as tasks:
        lease = await tasks.lock("one", ttl=30).acquire()
        assert lease is not None
        pending = await asyncio.to_thread(waiting, threads, "one", timeout=60)
        slot = cluster.slot(KEY)
        owner = cluster.owner(slot)
        await asyncio.to_thread(await_replicated, owner, cluster.replica_of(owner))

        owner.kill()
        await asyncio.to_thread(cluster.await_owner, slot, other_than=owner)

        assert lease.held
        assert not pending.done()
        await lease.release()
        after = await asyncio.to_thread(pending.result, 30)
        assert after.fence > lease.fence
        assert await tasks.lock("one").acquire(timeout=0) is None
        after.release()


def test_a_lock_keeps_its_holder_and_its_waiter_when_its_slot_moves(
    shared_cluster: Cluster, open_client: OpenClient
) -> None:
    holder, waiter, observer = (open_client(shared_cluster.url) for _ in range(3))
    lease = take(holder.lock("one", ttl=5))
    pending = acquiring(waiter.lock("one"), timeout=60)
    await_waiters(observer, "one", 1)
    slot = shared_cluster.slot(KEY)
    source = shared_cluster.owner(slot)
    target = elsewhere(shared_cluster, source)

    # While a slot moves, a server answers TRYAGAIN to a script if it has some of the keys and not the others. Most
    # requests for a lock get this answer during the whole move, and the client repeats them.
    shared_cluster.begin_move(slot, target)
    before = in_background(lease.renew)
    shared_cluster.move_keys(slot, source, target)
    after_keys = in_background(lease.renew)
    shared_cluster.end_move(slot, target)
    before.result(timeout=10)
    after_keys.result(timeout=10)
    lease.renew()

    assert not lease.wait_lost(4)
    assert not pending.done()
    await_waiters(observer, "one", 1)
    lease.release()
    after = pending.result(timeout=30)
    assert after.fence > lease.fence
    after.release()
    assert_free_and_clean(target, "one")
    assert KEY not in source.all_keys()


def test_a_lock_is_neither_lost_nor_granted_twice_while_its_slot_moves(
    shared_cluster: Cluster, open_client: OpenClient
) -> None:
    holder, other = open_client(shared_cluster.url), open_client(shared_cluster.url)
    lease = take(holder.lock("one", ttl=30))
    slot = shared_cluster.slot(KEY)
    source = shared_cluster.owner(slot)
    target = elsewhere(shared_cluster, source)

    shared_cluster.begin_move(slot, target)
    try:
        # Then the source has the other keys, but not this one, and answers TRYAGAIN.
        source.call("MIGRATE", "127.0.0.1", target.port, KEY, 0, 5000)
        pending = acquiring(other.lock("one"), timeout=60)
        with pytest.raises(TimeoutError):
            pending.result(timeout=1)
    finally:
        shared_cluster.move_keys(slot, source, target)
        shared_cluster.end_move(slot, target)

    lease.renew()
    lease.release()
    after = pending.result(timeout=30)
    assert after.fence > lease.fence
    after.release()


def test_hand_overs_work_after_the_slot_has_moved(shared_cluster: Cluster, open_client: OpenClient) -> None:
    holder, waiter = open_client(shared_cluster.url), open_client(shared_cluster.url)
    slot = shared_cluster.slot(KEY)
    for _ in range(4):
        lease = take(holder.lock("one"))
        pending = acquiring(waiter.lock("one"))
        await_waiters(holder, "one", 1)
        source = shared_cluster.owner(slot)
        target = elsewhere(shared_cluster, source)

        shared_cluster.begin_move(slot, target)
        shared_cluster.move_keys(slot, source, target)
        shared_cluster.end_move(slot, target)
        lease.release()

        pending.result(timeout=10).release()
    assert_free_and_clean(shared_cluster.owner(slot), "one")


def test_locks_of_all_nodes_are_found_and_exclude_each_other(shared_cluster: Cluster, open_client: OpenClient) -> None:
    some, other = open_client(shared_cluster.url), open_client(shared_cluster.url)

    leases = [take(some.lock(f"order-{number}"), timeout=0) for number in range(30)]

    assert len({shared_cluster.owner(shared_cluster.slot(f"holdfast:order-{number}")) for number in range(30)}) == 3
    assert {info.name for info in other.locks("order-")} == {f"order-{number}" for number in range(30)}
    assert other.lock("order-7").acquire(timeout=0) is None
    for lease in leases:
        lease.renew()
        lease.release()
    assert other.locks("order-") == []


async def test_tasks_on_a_cluster_wait_in_order(shared_cluster: Cluster) -> None:
    order: list[str] = []

    async def visit(client: holdfast.AsyncClient) -> None:
        async with client.lock("queue", timeout=60):
            task = asyncio.current_task()
            assert task is not None
            order.append(task.get_name())

    url = shared_cluster.url
    async with holdfast.AsyncClient(url, local_handover="no") as client, holdfast.AsyncClient(url) as holder:
        lease = await holder.lock("queue").acquire()
        assert lease is not None
        tasks = [asyncio.create_task(visit(client)) for _ in range(50)]
        while len(queue := (await holder.inspect("queue")).waiters) < 50:
            await asyncio.sleep(0.01)
        await lease.release()
        await asyncio.gather(*tasks)

    assert order == [waiter.agent for waiter in queue]


def test_one_live_node_is_enough_to_find_the_others_and_a_cluster_without_one_raises(
    cluster: Cluster, open_client: OpenClient
) -> None:
    slot = cluster.slot(KEY)
    owner = cluster.owner(slot)
    dead, live = (server for server in cluster.servers[:3] if server is not owner)
    dead.kill()

    client = open_client(f"redis+cluster://{dead.address},{live.address}")
    eventually(lambda: _can_take(client))
    for server in (owner, cluster.replica_of(owner)):
        server.kill()

    with pytest.raises(holdfast.BackendError):
        client.lock("one").acquire(timeout=0)


def _can_take(client: holdfast.Client) -> bool:
    try:
        lease = client.lock("one").acquire(timeout=0)
    except holdfast.BackendError:
        return False
    assert lease is not None
    lease.release()
    return True
