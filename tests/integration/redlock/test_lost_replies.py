"""Hazard: a node executes a request and its reply is lost: its vote belongs to no client or to a failed attempt, and
blocks other clients.

`cut`: the connection is reset. `hang`: nothing more arrives, and only a timeout ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import holdfast
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, await_waiters, keys_without_ttl, take
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.proxy import Proxy, Then
from tests.support.redis.redlock import RedlockServers

ENDS: list[Then] = ["cut", "hang"]
KEY = "holdfast:one"


def through(redlock: RedlockServers, proxies: list[Proxy]) -> str:
    """The URL of the nodes behind their proxies."""
    return redlock.url(ports={number: proxy.port for number, proxy in enumerate(proxies)}, quarantine="no")


def warm_up(client: holdfast.Client) -> None:
    """Open the connections, so that the next request is the one that the test loses."""
    with client.lock("warm-up") as lease:
        lease.renew()


def pending_releases(client: holdfast.Client) -> int:
    """The number of votes that the client still has to release."""
    return len(client._engine.backend._health._pending_releases)  # type: ignore[attr-defined]


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("nodes", [[0], [1, 4]])
def test_an_acquire_is_granted_and_leaves_no_vote_when_a_minority_does_not_reply(
    nodes: list[int], lost: str, then: Then, *, redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client, other = open_client(through(redlock, proxies)), open_client(redlock.url(quarantine="no"))
    warm_up(client)

    for number in nodes:
        (proxies[number].lose_next_reply if lost == "reply" else proxies[number].lose_next_request)(KEY, then=then)
    lease = client.lock("one", ttl=30).acquire(timeout=0)

    assert lease is not None
    assert other.lock("one").acquire(timeout=0) is None
    lease.release()
    eventually(lambda: redlock.vote_count("one") == 0)
    eventually(lambda: pending_releases(client) == 0)
    take(other.lock("one")).release()


@pytest.mark.parametrize("then", ENDS)
def test_an_acquire_raises_and_leaves_no_vote_when_a_majority_does_not_reply(
    then: Then, redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client, other = open_client(through(redlock, proxies)), open_client(redlock.url(quarantine="no"))
    warm_up(client)

    for proxy in proxies[1:4]:
        proxy.lose_next_reply(KEY, then=then)
    with pytest.raises(holdfast.QuorumError) as caught:
        client.lock("one", ttl=30).acquire(timeout=0)

    assert list(caught.value.causes) == [f"127.0.0.1:{proxy.port}" for proxy in proxies[1:4]]
    eventually(lambda: redlock.vote_count("one") == 0)
    take(other.lock("one")).release()


def test_votes_without_a_reply_are_released_when_the_node_replies_again(
    redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client = open_client(through(redlock, proxies))
    warm_up(client)

    proxies[2].lose_replies()
    lease = take(client.lock("one", ttl=30))
    proxies[2].lose_requests()
    lease.release()
    assert [vote is not None for vote in redlock.votes("one")] == [False, False, True, False, False]
    proxies[2].heal()
    proxies[2].cut()

    eventually(lambda: redlock.vote_count("one") == 0)
    eventually(lambda: pending_releases(client) == 0)  # after the reply to the release has arrived


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_release_without_some_replies_frees_the_lock(
    number: int, lost: str, then: Then, *, redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client, other = open_client(through(redlock, proxies)), open_client(redlock.url(quarantine="no"))
    warm_up(client)
    lease = take(client.lock("one", ttl=30))

    for proxy in proxies[:number]:
        (proxy.lose_next_reply if lost == "reply" else proxy.lose_next_request)(KEY, then=then)
    with contextlib.suppress(holdfast.QuorumError):  # it may report that it got too few replies
        lease.release()
    after = take(other.lock("one"), timeout=20)

    assert after.fence > lease.fence
    after.renew()  # the repeated releases of the first client do not end this lease
    eventually(lambda: pending_releases(client) == 0)
    assert redlock.vote_count("one") >= 3
    after.release()
    eventually(lambda: redlock.vote_count("one") == 0)


def test_a_vote_request_that_arrives_after_the_last_release_gets_no_vote(
    redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client = open_client(through(redlock, proxies))
    warm_up(client)
    proxies[0].lose_next_request(KEY)
    lease = take(client.lock("one", ttl=30))
    lease.release()
    eventually(lambda: pending_releases(client) == 0)

    backend: Any = client._engine.backend
    late_call = backend._vote_call(lease._claim, 1, 0, 0, "", (1, "", ""))
    replies = run_sync(backend._port.run_calls([(0, late_call)], deadline=system.now() + PATIENCE))

    assert replies == [[b"late"]]
    assert redlock.vote_count("one") == 0
    assert client.inspect("one").waiters == ()


@pytest.mark.parametrize("then", ENDS)
def test_a_waiter_is_granted_and_leaves_no_queue_entry_when_its_first_reply_was_lost(
    then: Then, redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client, other = open_client(through(redlock, proxies)), open_client(redlock.url(quarantine="no"))
    warm_up(client)
    lease = take(other.lock("one"))

    proxies[0].lose_next_reply(KEY, then=then)
    waiter = acquiring(client.lock("one"))
    await_waiters(other, "one", 1)
    lease.release()

    waiter.result(timeout=20).release()
    eventually(lambda: other.inspect("one").waiters == ())
    eventually(lambda: redlock.vote_count("one") == 0)
    assert [keys_without_ttl(server) for server in redlock.servers] == [set()] * 5


@pytest.mark.parametrize("then", ENDS)
def test_a_lease_is_kept_when_one_round_of_renewals_is_lost(
    then: Then, redlock: RedlockServers, proxies: list[Proxy], open_client: OpenClient
) -> None:
    client = open_client(through(redlock, proxies))
    warm_up(client)
    lease = take(client.lock("one", ttl=6))

    for proxy in proxies:
        proxy.lose_next_reply(KEY, then=then)

    assert not lease.wait_lost(7)  # more than its ttl
    lease.release()
    eventually(lambda: redlock.vote_count("one") == 0)


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("then", ENDS)
async def test_a_task_is_granted_by_a_majority_and_leaves_no_vote(
    then: Then, redlock: RedlockServers, proxies: list[Proxy]
) -> None:
    async with holdfast.AsyncClient(through(redlock, proxies)) as client:
        async with client.lock("warm-up"):
            pass
        for number in (0, 3):
            proxies[number].lose_next_reply(KEY, then=then)
        async with client.lock("one", timeout=0):
            proxies[1].lose_next_reply(KEY, then=then)
        while redlock.vote_count("one"):
            await asyncio.sleep(0.05)


async def test_cancelled_acquires_leave_no_votes_and_no_queue_entries(redlock: RedlockServers) -> None:
    url = redlock.url(quarantine="no")
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other:
        async with client.lock("warm-up"):
            pass
        for round_ in range(60):
            held = await other.lock("one").acquire() if round_ % 3 == 0 else None
            task = asyncio.create_task(client.lock("one", ttl=30).acquire())
            for _ in range(round_ * 7 % 12):
                await asyncio.sleep(0)
            if round_ % 2:
                await asyncio.sleep(round_ * 13 % 60 / 20_000)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(outcome, holdfast.AsyncLease):
                await outcome.release()
            if held is not None:
                await held.release()

        while redlock.vote_count("one"):
            await asyncio.sleep(0.05)
        while (await other.inspect("one")).waiters:
            await asyncio.sleep(0.05)
        backend: Any = client._engine.backend
        assert backend._port.subscriber.wakeups.expected() == []
        async with other.lock("one", timeout=5):
            pass


async def test_an_acquire_cancelled_while_nodes_hang_leaves_no_votes_when_they_reply(
    redlock: RedlockServers, proxies: list[Proxy]
) -> None:
    async with holdfast.AsyncClient(through(redlock, proxies)) as client:
        async with client.lock("warm-up"):
            pass
        for proxy in proxies[:3]:
            proxy.lose_replies()
        task = asyncio.create_task(client.lock("one", ttl=30).acquire())
        while redlock.vote_count("one") < 5:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for proxy in proxies[:3]:
            proxy.heal()
            proxy.cut()

        while redlock.vote_count("one"):
            await asyncio.sleep(0.05)
