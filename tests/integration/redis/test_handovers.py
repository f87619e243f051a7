"""Hazard: a lock is handed over to a dead client, a hand-over is trusted for longer than the lease on the server, or
other clients never get the lock.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from pathlib import Path
from statistics import median

import holdfast
from holdfast.backends.redis.protocol.keys import queue_keys
from holdfast.core.tickets import POLL_INTERVAL, WAITER_LEASE
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import PROMPT, acquiring, assert_free_and_clean, await_waiters, take
from tests.support.processes import Worker, WorkerPool, eventually, now
from tests.support.redis.binaries import Binary
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Pair
from tests.support.server_process import running

ROUNDS = 5
TTL = 30.0


def scripts_run(server: Server) -> int:
    counted = re.search(r"cmdstat_evalsha:calls=(\d+)", server.call("INFO", "commandstats"))
    return int(counted[1]) if counted else 0


def scripts_for_a_hand_over(server: Server, holder: holdfast.Client, waiter: holdfast.Client) -> float:
    """The number of scripts from a release to the next grant. It is the median, because waiters may poll in between."""
    counts = []
    for _ in range(ROUNDS):
        lease = take(holder.lock("one"))
        pending = acquiring(waiter.lock("one"))
        await_waiters(holder, "one", 1)
        eventually(lambda: len(server.subscribers()) == 1)
        before = scripts_run(server)
        lease.release()
        handed = pending.result()
        counts.append(scripts_run(server) - before)
        handed.release()
    return median(counts)


def test_a_hand_over_needs_no_request_of_the_new_holder(
    every_binary: Binary, tmp_path: Path, open_client: OpenClient
) -> None:
    with running(Server(every_binary, tmp_path)) as server:
        assert scripts_for_a_hand_over(server, open_client(server.url), open_client(server.url)) == 1

        assert_free_and_clean(server, "one")


async def test_a_hand_over_to_a_task_needs_no_request(server: Server) -> None:
    counts = []
    async with holdfast.AsyncClient(server.url) as holder, holdfast.AsyncClient(server.url) as waiter:
        for _ in range(ROUNDS):
            lease = await holder.lock("one").acquire()
            assert lease is not None
            pending = asyncio.create_task(waiter.lock("one").acquire())
            while not (await holder.inspect("one")).waiters or not server.subscribers():
                await asyncio.sleep(0.01)
            before = scripts_run(server)
            await lease.release()
            handed = await pending
            counts.append(scripts_run(server) - before)
            assert handed is not None
            await handed.release()

    assert median(counts) == 1
    assert_free_and_clean(server, "one")


def test_on_a_cluster_the_lock_is_handed_over_too(shared_cluster: Cluster, open_client: OpenClient) -> None:
    holder, waiter = open_client(shared_cluster.url), open_client(shared_cluster.url)
    owner = shared_cluster.owner(shared_cluster.slot("holdfast:one"))

    assert scripts_for_a_hand_over(owner, holder, waiter) == 1


def test_there_is_no_hand_over_without_a_prefix(server: Server, open_client: OpenClient) -> None:
    url = f"{server.url}?prefix="

    assert scripts_for_a_hand_over(server, open_client(url), open_client(url)) == 2


def test_there_is_no_hand_over_with_replicas(pair: Pair, open_client: OpenClient) -> None:
    url = f"{pair.primary.url}?replicas=1&replicas_timeout=10"

    assert scripts_for_a_hand_over(pair.primary, open_client(url), open_client(url)) == 2


def test_the_server_reports_the_same_holder_fence_and_ttl_after_a_hand_over(
    server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(server.url), open_client(server.url)
    fences = []
    for _ in range(ROUNDS):
        lease = take(holder.lock("one"))
        pending = acquiring(waiter.lock("one", ttl=TTL))
        await_waiters(holder, "one", 1)
        lease.release()
        handed = pending.result()

        (holder_info,) = holder.inspect("one").holders
        assert holder_info.fence == handed.fence
        assert handed.remaining < holder_info.remaining <= TTL
        handed.renew()
        handed.release()
        fences += [lease.fence, handed.fence]

    assert fences == sorted(set(fences))


def queue_up(first: Worker, second: holdfast.Client, observer: holdfast.Client) -> Future[holdfast.Lease]:
    """Queue both for the lock, in this order. Return the future lease of the second one."""
    first.send("acquire", lock="one", ttl=TTL)
    await_waiters(observer, "one", 1)
    pending = acquiring(second.lock("one"))
    await_waiters(observer, "one", 2)
    return pending


def test_a_killed_waiter_is_skipped_although_it_polled_just_now(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    killed = pool.start(server.url)
    pending = queue_up(killed, other, holder)
    eventually(lambda: len(server.subscribers()) == 2)

    killed.kill()
    eventually(lambda: len(server.subscribers()) == 1)
    released_at = now()
    lease.release()

    pending.result().release()
    assert now() - released_at < TTL / 2


def test_a_hand_over_that_no_connection_of_the_primary_receives_is_not_announced_to_its_replicas(
    pool: WorkerPool, pair: Pair, open_client: OpenClient
) -> None:
    """A client that is still subscribed at a former primary would believe the message and hold the lock too."""
    primary = pair.primary
    holder, other = open_client(primary.url), open_client(primary.url)
    lease = take(holder.lock("one"))
    killed = pool.start(primary.url)
    killed.send("acquire", lock="one", ttl=TTL)
    await_waiters(holder, "one", 1)
    eventually(lambda: len(primary.subscribers()) == 1)
    (channel,) = primary.call("PUBSUB", "CHANNELS")
    killed.kill()
    eventually(lambda: primary.subscribers() == [])

    with pair.replica.connect() as replica:
        replica.call("SUBSCRIBE", channel)
        lease.release()
        take(other.lock("one")).release()
        primary.call("PUBLISH", channel, "the last message")
        messages = []
        while (message := replica.read()[2]) != "the last message":
            messages.append(message)

    assert messages, "the release woke the waiter"
    assert [message for message in messages if " " in message] == []


MANY = 20  # waiting threads of one process: to wait WOKEN_LEASE for each of them would take too long


def queue_up_many(first: Worker, second: holdfast.Client, observer: holdfast.Client) -> Future[holdfast.Lease]:
    """Queue many threads of a process for the lock, and then another client. Return the future lease of this client."""
    for _ in range(MANY):
        first.call("acquire_in_background", lock="one")
    await_waiters(observer, "one", MANY)
    pending = acquiring(second.lock("one"))
    await_waiters(observer, "one", MANY + 1)
    return pending


def test_all_waiters_of_a_killed_process_are_skipped_at_once(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    killed = pool.start(f"{server.url}?local_handover=no")
    pending = queue_up_many(killed, other, holder)
    eventually(lambda: len(server.subscribers()) == 2)

    killed.kill()
    eventually(lambda: len(server.subscribers()) == 1)
    lease.release()

    pending.result(PROMPT).release()


def test_all_waiters_of_a_stopped_process_are_skipped_together(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    stopped = pool.start(f"{server.url}?local_handover=no")
    pending = queue_up_many(stopped, other, holder)

    stopped.stop()
    eventually(lambda: holder.inspect("one").waiters[0].remaining < WAITER_LEASE - POLL_INTERVAL)
    lease.release()

    pending.result(PROMPT).release()
    stopped.resume()
    eventually(lambda: len(holder.inspect("one").holders) == 1)


def test_a_waiter_that_has_been_stopped_for_a_while_gets_no_hand_over(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    stopped = pool.start(server.url)
    pending = queue_up(stopped, other, holder)

    stopped.stop()
    eventually(lambda: holder.inspect("one").waiters[0].remaining < WAITER_LEASE - POLL_INTERVAL)
    released_at = now()
    lease.release()

    handed = pending.result()
    assert now() - released_at < TTL / 2
    stopped.resume()
    handed.release()
    assert stopped.receive()["fence"] > handed.fence
    stopped.call("release", lock="one")


def test_a_waiter_stopped_just_before_its_hand_over_acquires_again_when_the_hand_over_has_expired(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(server.url), open_client(server.url)
    stopped = pool.start(server.url)
    for ttl in (2.0, 2.0):  # in the first round it may have to poll again after its subscription
        lease = take(holder.lock("one"))
        stopped.send("acquire", lock="one", ttl=ttl)
        await_waiters(holder, "one", 1)
        eventually(lambda: len(server.subscribers()) >= 1)
        pending = acquiring(other.lock("one"))
        await_waiters(holder, "one", 2)

        stopped.stop()
        lease.release()
        handed = pending.result()
        stopped.resume()

        assert stopped.is_silent(0.1), "the hand-over has expired, and the waiter is queued again"
        handed.check()
        handed.release()
        assert stopped.receive()["fence"] > handed.fence > lease.fence
        stopped.call("release", lock="one")


def test_a_client_ignores_invalid_notifications(server: Server, open_client: OpenClient) -> None:
    """Forged, damaged, late and early notifications, and some for unknown tickets."""
    holder, waiter = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one"))
    pending = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)
    eventually(lambda: len(server.subscribers()) == 1)
    (channel,) = server.call("PUBSUB", "CHANNELS")
    (nonce,) = server.call("LRANGE", queue_keys("holdfast:", "one", per_slot=False).queue, 0, -1)

    for message in ("", " ", "x", "0 1", nonce, *(f"{nonce} {fence}" for fence in ("", "0", "-1", "x", "1 2", "²"))):
        assert server.call("PUBLISH", channel, message) == 1
    scripts_before = scripts_run(server)
    eventually(lambda: scripts_run(server) > scripts_before)  # the waiter still polls

    assert not pending.done()
    lease.release()
    pending.result().release()
