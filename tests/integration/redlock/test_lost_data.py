"""Hazard: a node restarts without its data and votes a second time, so that two holders have a majority.

Quarantine prevents it: a node that may lose data does not count until it has been up for `max_ttl`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_lost, renews, take
from tests.integration.redlock.conftest import StartRedlock
from tests.support.processes import eventually, now
from tests.support.redis.proxy import Proxy
from tests.support.redis.redlock import DURABLE, RedlockServers

MAX_TTL = 4.0
UPTIME_MIN = MAX_TTL + 2  # INFO reports whole seconds, and up to one second too many


@pytest.fixture
def old_nodes(own_redlock: RedlockServers) -> RedlockServers:
    """Five nodes whose quarantine has ended."""
    for server in own_redlock.servers:
        server.await_true(lambda server: float(server.info("server")["uptime_in_seconds"]) >= UPTIME_MIN)
    return own_redlock


@pytest.fixture
def out_of_reach(own_redlock: RedlockServers) -> Iterator[dict[int, int]]:
    """The ports of proxies in front of the last two nodes. The proxies refuse all connections."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for number in (3, 4):
            proxy = stack.enter_context(Proxy(own_redlock.servers[number].port))
            ports[number] = proxy.port
            proxy.refuse()
        yield ports


def test_new_nodes_do_not_count_and_the_error_names_the_reason_and_the_end(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    started = now()
    client = open_client(own_redlock.url(max_ttl=MAX_TTL))

    with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s") as caught:
        client.lock("one", ttl=3).acquire(timeout=0)

    assert list(caught.value.causes) == own_redlock.addresses
    assert "max_ttl=4" in str(caught.value)
    assert "appendfsync always" in str(caught.value)
    eventually(lambda: own_redlock.vote_count("one") == 0)  # the votes of new nodes are released too
    eventually(lambda: _can_acquire(client))
    assert now() - started > MAX_TTL - 1  # the nodes were started a moment earlier
    assert min(float(server.info("server")["uptime_in_seconds"]) for server in own_redlock.servers) >= MAX_TTL


async def test_new_nodes_do_not_count_for_tasks(own_redlock: RedlockServers) -> None:
    async with holdfast.AsyncClient(own_redlock.url(max_ttl=MAX_TTL)) as client:
        with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s"):
            await client.lock("one", ttl=3).acquire(timeout=0)
        with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s"):
            await client.lock("one", ttl=3).acquire(timeout=1)
    eventually(lambda: own_redlock.vote_count("one") == 0)


def test_a_node_that_lost_its_vote_does_not_vote_again_while_the_lease_runs(
    old_nodes: RedlockServers, out_of_reach: dict[int, int], open_client: OpenClient
) -> None:
    holder = open_client(old_nodes.url(ports=out_of_reach, max_ttl=MAX_TTL))
    lease = take(holder.lock("one", ttl=3.9, renew=False))
    assert [vote is not None for vote in old_nodes.votes("one")] == [True, True, True, False, False]
    lease_end = now() + lease.remaining

    old_nodes.servers[2].restart()
    others = [open_client(old_nodes.url(max_ttl=MAX_TTL)) for _ in range(2)]
    pending = [acquiring(client.lock("one", ttl=3)) for client in others]
    first = _await_first(pending)

    assert now() > lease_end
    assert first.result().fence > lease.fence
    first.result().release()
    for future in pending:
        if future is not first:
            future.result(timeout=30).release()


def test_a_node_without_quarantine_votes_again_and_the_fence_is_greater(
    own_redlock: RedlockServers, out_of_reach: dict[int, int], open_client: OpenClient
) -> None:
    """The result of the previous test without quarantine. The documentation describes it."""
    holder = open_client(own_redlock.url(ports=out_of_reach, max_ttl=120, quarantine="no"))
    lease = take(holder.lock("one", ttl=120, renew=False))

    own_redlock.servers[2].restart()
    other = open_client(own_redlock.url(max_ttl=120, quarantine="no"))
    second = take(other.lock("one", ttl=120), timeout=60)

    assert lease.held
    assert second.held
    assert second.fence > lease.fence
    second.release()
    with contextlib.suppress(holdfast.HoldfastError):  # a majority of the nodes is unreachable or has no vote for it
        lease.release()


@pytest.mark.parametrize("killed", [[2], [0, 4]])
def test_a_lost_vote_is_restored_at_a_renewal(
    killed: list[int], old_nodes: RedlockServers, open_client: OpenClient
) -> None:
    url = old_nodes.url(max_ttl=MAX_TTL)
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3))
    (vote,) = {vote.rpartition(":")[0] for vote in old_nodes.votes("one") if vote}

    for number in killed:
        old_nodes.servers[number].restart()

    eventually(lambda: [bool(stored and stored.startswith(vote)) for stored in old_nodes.votes("one")] == [True] * 5)
    assert other.lock("one", ttl=3).acquire(timeout=0) is None
    assert [holder.fence for holder in other.inspect("one").holders] == [lease.fence]
    lease.release()
    after = take(other.lock("one", ttl=3))
    assert after.fence > lease.fence
    after.release()


async def test_a_lost_vote_of_a_task_is_restored_at_a_renewal(own_redlock: RedlockServers) -> None:
    async with holdfast.AsyncClient(own_redlock.url(quarantine="no")) as client:
        lease = await client.lock("one", ttl=3).acquire()
        assert lease is not None

        own_redlock.servers[0].restart()
        is_repaired = False
        while not is_repaired:
            await lease.wait_lost(0.05)
            is_repaired = own_redlock.vote_count("one") == 5

        await lease.renew()
        await lease.release()
    assert own_redlock.vote_count("one") == 0


def test_a_lease_is_lost_and_not_granted_to_another_client_when_a_majority_has_lost_its_data(
    old_nodes: RedlockServers, open_client: OpenClient
) -> None:
    url = old_nodes.url(max_ttl=MAX_TTL)
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3.9))

    for server in old_nodes.servers[:3]:
        server.restart()
    with pytest.raises(holdfast.QuorumError, match="may have forgotten"):
        other.lock("one", ttl=3).acquire(timeout=0)

    assert_lost(lease)


def test_nodes_with_appendfsync_always_count_at_once_and_keep_their_votes(
    start_redlock: StartRedlock, open_client: OpenClient
) -> None:
    redlock = start_redlock(*DURABLE)
    url = redlock.url()
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=20, renew=False))
    votes = redlock.votes("one")

    for server in redlock.servers:
        server.restart()

    assert redlock.votes("one") == votes
    eventually(lambda: _is_busy(other))
    eventually(lambda: renews(lease))
    lease.release()
    after = take(other.lock("one"))
    assert after.fence > lease.fence
    after.release()
    assert (other.guarantees.exclusion.value, other.guarantees.fence.value) == ("durable-authority", "durable-storage")


def _can_acquire(client: holdfast.Client) -> bool:
    try:
        with client.lock("one", ttl=3, timeout=0):
            return True
    except holdfast.QuorumError:
        return False


def _is_busy(client: holdfast.Client) -> bool:
    """Whether enough nodes have replied; the lock must be busy then."""
    try:
        lease = client.lock("one").acquire(timeout=0)
    except holdfast.QuorumError:
        return False
    assert lease is None
    return True


def _await_first(pending: list[Future[holdfast.Lease]]) -> Future[holdfast.Lease]:
    done, _ = wait(pending, timeout=30, return_when=FIRST_COMPLETED)
    return done.pop()
