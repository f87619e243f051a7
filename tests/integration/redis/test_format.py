"""Hazard: a lock costs the server more than necessary: commands, keys that remain, a listing that reads all keys."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, await_waiters, take
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

WATERMARK, INDEX = "holdfast:{}:fence", "holdfast:{}:locks"


def test_5000_names_that_were_used_once_leave_only_the_watermark(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)

    for number in range(5000):
        with client.lock(f"name-{number}"):
            pass
    with client.lock("last") as lease:
        assert server.all_keys() == {WATERMARK, INDEX, "holdfast:last"}

    assert server.all_keys() == {WATERMARK}
    assert server.call("GET", WATERMARK) == str(lease.fence)


def test_a_pair_takes_12_commands_and_one_more_at_most(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    costs = []

    for _ in range(50):
        before = server.commands_run()
        with client.lock("one"):
            pass
        costs.append(server.commands_run() - before)

    assert min(costs) == 12
    assert set(costs[1:]) <= {12, 13}, "one call of sixteen removes expired locks from the index"


@pytest.mark.parametrize("clients", [2, 8])
async def test_a_turn_takes_at_most_17_commands_when_several_clients_contend(server: Server, clients: int) -> None:
    """A turn is from the request of a waiter to its release. Commands inside scripts count too."""
    turns = 50

    async def contend(client: holdfast.AsyncClient, count: int) -> None:
        for _ in range(count):
            async with client.lock("one"):
                pass

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(holdfast.AsyncClient(server.url)) for _ in range(clients)]
        costs = []
        for count in (5, turns, turns, turns):  # in the first round they connect and subscribe
            before = server.commands_run()
            await asyncio.gather(*(contend(client, count) for client in opened))
            costs.append((server.commands_run() - before) / (clients * count))

    # On a busy machine waiters poll, so the cheapest round counts.
    assert min(costs[1:]) <= 17
    assert server.all_keys() == {WATERMARK}


def test_a_renewal_takes_4_commands(server: Server, open_client: OpenClient) -> None:
    lease = take(open_client(server.url).lock("one", renew=False))
    lease.renew()  # loads the script

    before = server.commands_run()
    lease.renew()

    assert server.commands_run() - before == 4
    lease.release()


def test_a_listing_takes_the_same_commands_beside_any_number_of_foreign_keys(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    leases = [take(client.lock(f"lock-{number}")) for number in range(10)]
    costs = []

    for number in (1_000, 20_000):
        server.call("EVAL", "for i = 1, ARGV[1] do redis.call('SET', 'holdfast:foreign' .. i, i) end", 0, number)
        client.locks()
        before = server.commands_run()
        assert len(client.locks("lock-")) == 10
        costs.append(server.commands_run() - before)

    assert costs[0] == costs[1] < 150
    assert "cmdstat_scan" not in server.info("commandstats")
    for lease in leases:
        lease.release()


def test_a_lock_is_listed_from_its_grant_to_its_release_and_while_only_waiters_remain(
    server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    reader = take(holder.rwlock("book").read())
    assert [info.name for info in holder.locks()] == ["book", "one"]

    reader.release()
    lease.release()
    assert holder.locks() == []

    server.call("SET", "holdfast:one", "of another program", "PX", 30_000)
    assert holder.locks() == [], "the index does not have it"
    assert [info.agent for info in holder.inspect("one").holders] == ["another program"]
    pending = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)
    assert [info.name for info in holder.locks()] == ["one"]

    server.call("DEL", "holdfast:one")
    pending.result().release()
    assert holder.locks() == []


def test_listings_on_a_cluster_read_the_indexes_of_all_slots(shared_cluster: Cluster, open_client: OpenClient) -> None:
    client = open_client(f"{shared_cluster.url}?prefix=listed:")
    leases = [take(client.lock(f"lock-{number}")) for number in range(20)]

    assert sorted(info.name for info in client.locks("lock-")) == sorted(f"lock-{number}" for number in range(20))
    assert [info.name for info in client.locks("lock-7")] == ["lock-7"]

    for lease in leases:
        lease.release()
    assert client.locks() == []


@pytest.mark.parametrize("value", ["holdfast:queue:0123", "holdfast:queue:+shared", "holdfast:shared"])
def test_a_lock_of_a_version_before_0_2_is_a_clear_error(value: str, server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    server.call("SET", "holdfast:one", value, "PX", 30_000)

    for lock in (client.lock("one"), client.rwlock("one").read(), client.semaphore("one", 2)):
        with pytest.raises(holdfast.NameConflict, match=r"before 0\.2"):
            lock.acquire(timeout=0)
    assert server.call("GET", "holdfast:one") == value


def test_fences_of_all_locks_continue_after_a_lock_whose_fence_is_ahead_of_the_clock(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    ahead = 2**52
    server.call("SET", WATERMARK, ahead)

    with client.lock("one") as lease_a, client.lock("two") as lease_b:
        assert (lease_a.fence, lease_b.fence) == (ahead + 1, ahead + 2)
