"""Hazard: waiters are not woken, or are granted only if they are woken; or all of them poll all the time, which loads
the nodes and splits the votes.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import holdfast
from holdfast.backends.redlock.protocol.quorum import POLL_FIRST
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import PROMPT, acquiring, await_waiters, in_background, keys_without_ttl, take
from tests.support.intervals import assert_exclusive, gaps, quantile, report, turns_of
from tests.support.processes import WorkerPool, eventually, now
from tests.support.redis.redlock import RedlockServers

SOON = 0.3  # seconds: enough for all workers to receive the start time


def published(redlock: RedlockServers) -> int:
    """The number of notifications sent by the node on which all clients are subscribed."""
    return int(redlock.servers[0].info("commandstats").get("cmdstat_publish", "calls=0").split(",")[0][6:])


def test_a_waiter_is_woken_long_before_its_next_poll(redlock: RedlockServers, open_client: OpenClient) -> None:
    url = redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    pairs, delays = [], []
    before = published(redlock)

    for _ in range(20):
        began = now()
        take(holder.lock("other")).release()
        pairs.append(now() - began)
        lease = take(holder.lock("one"))
        pending = in_background(lambda: (take(waiter.lock("one")), now()))
        await_waiters(holder, "one", 1)
        eventually(lambda: len(redlock.servers[0].subscribers()) >= 1)
        released_at = now()
        lease.release()
        after, acquired_at = pending.result(timeout=PROMPT)
        delays.append(acquired_at - released_at)
        after.release()

    report(f"handed over in {median(delays) * 1e3:.1f} ms, the poll is every {POLL_FIRST * 1e3:.0f} ms")
    assert published(redlock) - before >= 20
    # A waiter that only polls needs half an interval on average; a busy machine may need longer for a message, too.
    assert median(delays) < POLL_FIRST / 10 + 5 * median(pairs), (delays, pairs)


async def test_tasks_are_woken_too(redlock: RedlockServers) -> None:
    url = redlock.url(quarantine="no")
    inside = most = 0

    async def visit(client: holdfast.AsyncClient) -> int:
        nonlocal inside, most
        async with client.lock("one", timeout=60) as lease:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            return lease.fence

    async with holdfast.AsyncClient(url) as holder, holdfast.AsyncClient(url) as client:
        lease = await holder.lock("one").acquire()
        assert lease is not None
        tasks = [asyncio.create_task(visit(client)) for _ in range(30)]
        while len((await holder.inspect("one")).waiters) < 30:
            await asyncio.sleep(0.01)
        began = now()
        await lease.release()
        fences = await asyncio.gather(*tasks)
        report(f"30 hand-overs in {now() - began:.2f} s")

    assert most == 1
    assert len(set(fences)) == 30
    assert min(fences) > lease.fence


def test_waiters_acquire_the_lock_without_notifications(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    for server in own_redlock.servers:
        server.call("ACL", "SETUSER", "default", "-@pubsub")
    url = own_redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    lease = take(holder.lock("one"))
    pending = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)

    lease.release()

    pending.result(timeout=PROMPT).release()


def test_the_next_waiter_is_granted_when_the_holder_has_died(
    pool: WorkerPool, redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = redlock.url(quarantine="no")
    holder = pool.start(url)
    fence = holder.call("acquire", lock="one", ttl=3)["fence"]
    waiter = open_client(url)
    pending = acquiring(waiter.lock("one"))

    holder.kill()

    after = pending.result(timeout=20)
    assert after.fence > fence
    after.release()


def test_a_node_without_the_holder_does_not_make_waiters_poll_faster(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    """The node votes for any ticket. The other nodes' replies show that the lock is held, so the vote is not split."""
    url = redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=30, renew=False))
    redlock.servers[3].call("DEL", "holdfast:one")
    pending = [acquiring(waiter.lock("one")) for _ in range(5)]
    await_waiters(holder, "one", 5)

    before = _scripts_run(redlock)
    time.sleep(2)
    polls = (_scripts_run(redlock) - before) / 2

    report(f"{polls:.0f} requests a second to one node for 5 waiters")
    assert polls < 60
    lease.release()
    for future in pending:
        future.add_done_callback(lambda done: done.result().release())
    for future in pending:
        future.result(timeout=30)


def test_8_processes_with_one_lock_exclude_each_other(pool: WorkerPool, redlock: RedlockServers) -> None:
    workers = pool.start_many(8, redlock.url(quarantine="no"))

    start = now() + SOON
    for worker in workers:
        worker.send("turns", lock="one", start=start, times=20)
    turns = turns_of(worker.receive(within=100)["turns"] for worker in workers)

    assert len(turns) == 160
    assert_exclusive(turns)
    seconds = turns[-1].leaving - turns[0].acquired
    report(f"{len(turns)} turns in {seconds:.1f} s; median gap {quantile(gaps(turns), 0.5) * 1e6:.0f} µs")
    for worker in workers:
        worker.release()
    assert redlock.vote_count("one") == 0


def test_only_the_count_remains_after_use_and_it_has_a_ttl(redlock: RedlockServers, open_client: OpenClient) -> None:
    url = redlock.url(quarantine="no")
    client, other = open_client(url), open_client(url)

    for number in range(10):
        with client.lock(f"lock-{number}"):
            assert other.lock(f"lock-{number}").acquire(timeout=0.01) is None
            assert other.lock(f"lock-{number}").acquire(timeout=0) is None

    for server in redlock.servers:
        assert {server.call("TYPE", key) for key in server.all_keys()} == {"hash"}
        assert len(server.all_keys()) == 10
        assert keys_without_ttl(server) == set()
    for user in (client, other):
        backend: Any = user._engine.backend
        assert backend._port.subscriber.wakeups.expected() == []


def _scripts_run(redlock: RedlockServers) -> int:
    return int(redlock.servers[0].info("commandstats")["cmdstat_evalsha"].split(",")[0][6:])
