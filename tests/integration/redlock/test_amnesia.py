"""Hazard: a node comes back without its memory and votes a second time, so that two holders have a majority each.

The answer is quarantine: a node that may forget does not count until it has been up for `max_ttl`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest

import holdfast
from tests.integration.redis.scenes import acquiring, assert_told, renews, take
from tests.integration.redlock.conftest import OpenClient, StartCouncil
from tests.support.processes import eventually, now
from tests.support.redis.councils import DURABLE, Council
from tests.support.redis.proxy import Proxy

MAX_TTL = 4.0
GROWN_UP = MAX_TTL + 2  # what INFO says is whole seconds, and up to one too much


@pytest.fixture
def elders(own_council: Council) -> Council:
    """Five nodes that count."""
    for server in own_council.servers:
        server.await_true(lambda server: float(server.info("server")["uptime_in_seconds"]) >= GROWN_UP)
    return own_council


@pytest.fixture
def out_of_reach(elders: Council) -> Iterator[dict[int, int]]:
    """The ports of proxies before the last two nodes that let nothing through."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for number in (3, 4):
            proxy = stack.enter_context(Proxy(elders.servers[number].port))
            ports[number] = proxy.port
            proxy.refuse()
        yield ports


def test_nodes_that_have_just_been_started_do_not_count_and_the_error_says_why_and_until_when(
    own_council: Council, open_client: OpenClient
) -> None:
    started = now()
    client = open_client(own_council.url(max_ttl=MAX_TTL))

    with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s") as caught:
        client.lock("one", ttl=3).acquire(timeout=0)

    assert list(caught.value.causes) == own_council.addresses
    assert "max_ttl=4" in str(caught.value)
    assert "appendfsync always" in str(caught.value)
    eventually(lambda: own_council.vote_count("one") == 0)  # nor do their votes stay behind
    eventually(lambda: _gets(client))
    assert now() - started > MAX_TTL - 1  # they were started a moment before
    assert min(float(server.info("server")["uptime_in_seconds"]) for server in own_council.servers) >= MAX_TTL


async def test_tasks_too_get_nothing_from_nodes_that_have_just_been_started(own_council: Council) -> None:
    async with holdfast.AsyncClient(own_council.url(max_ttl=MAX_TTL)) as client:
        with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s"):
            await client.lock("one", ttl=3).acquire(timeout=0)
        with pytest.raises(holdfast.QuorumError, match=r"counts again in \d s"):
            await client.lock("one", ttl=3).acquire(timeout=1)
    eventually(lambda: own_council.vote_count("one") == 0)


def test_a_node_that_forgot_its_vote_does_not_give_it_a_second_time_while_the_lease_runs(
    elders: Council, out_of_reach: dict[int, int], open_client: OpenClient
) -> None:
    holder = open_client(elders.url(ports=out_of_reach, max_ttl=MAX_TTL))
    lease = take(holder.lock("one", ttl=3.9, renew=False))
    assert [vote is not None for vote in elders.votes("one")] == [True, True, True, False, False]
    ends = now() + lease.remaining

    elders.servers[2].restart()
    others = [open_client(elders.url(max_ttl=MAX_TTL)) for _ in range(2)]
    coming = [acquiring(client.lock("one", ttl=3)) for client in others]
    first = _await_first(coming)

    assert now() > ends
    assert first.result().fence > lease.fence
    first.result().release()
    for one in coming:
        if one is not first:
            one.result(timeout=30).release()


def test_without_quarantine_it_does_and_the_fence_is_all_that_is_left(
    elders: Council, out_of_reach: dict[int, int], open_client: OpenClient
) -> None:
    """What the test before this one would see if there were no quarantine; and what the manual says of it."""
    holder = open_client(elders.url(ports=out_of_reach, max_ttl=MAX_TTL))
    lease = take(holder.lock("one", ttl=3.9, renew=False))

    elders.servers[2].restart()
    other = open_client(elders.url(max_ttl=MAX_TTL, quarantine="no"))
    second = take(other.lock("one", ttl=3), timeout=2)

    assert lease.held
    assert second.held
    assert second.fence > lease.fence
    second.release()


@pytest.mark.parametrize("killed", [[2], [0, 4]])
def test_a_vote_that_was_forgotten_is_repaired_at_a_renewal(
    killed: list[int], elders: Council, open_client: OpenClient
) -> None:
    url = elders.url(max_ttl=MAX_TTL)
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3))
    (vote,) = {vote.rpartition(":")[0] for vote in elders.votes("one") if vote}

    for number in killed:
        elders.servers[number].restart()

    eventually(lambda: [bool(found and found.startswith(vote)) for found in elders.votes("one")] == [True] * 5)
    assert other.lock("one", ttl=3).acquire(timeout=0) is None
    assert [holder.fence for holder in other.inspect("one").holders] == [lease.fence]
    lease.release()
    after = take(other.lock("one", ttl=3))
    assert after.fence > lease.fence
    after.release()


async def test_a_task_s_forgotten_vote_is_repaired_too(own_council: Council) -> None:
    async with holdfast.AsyncClient(own_council.url(quarantine="no")) as client:
        lease = await client.lock("one", ttl=3).acquire()
        assert lease is not None

        own_council.servers[0].restart()
        eventually_repaired = False
        while not eventually_repaired:
            await lease.wait_lost(0.05)
            eventually_repaired = own_council.vote_count("one") == 5

        await lease.renew()
        await lease.release()
    assert own_council.vote_count("one") == 0


def test_when_a_majority_forgets_the_holder_is_told_at_its_next_renewal_and_nobody_is_let_in(
    elders: Council, open_client: OpenClient
) -> None:
    url = elders.url(max_ttl=MAX_TTL)
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3.9))

    for server in elders.servers[:3]:
        server.restart()
    with pytest.raises(holdfast.QuorumError, match="may have forgotten"):
        other.lock("one", ttl=3).acquire(timeout=0)

    assert_told(lease)


def test_nodes_that_write_before_they_answer_count_at_once_and_remember(
    start_council: StartCouncil, open_client: OpenClient
) -> None:
    council = start_council(*DURABLE)
    url = council.url()
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=20, renew=False))
    votes = council.votes("one")

    for server in council.servers:
        server.restart()

    assert council.votes("one") == votes
    eventually(lambda: _is_busy(other))
    eventually(lambda: renews(lease))
    lease.release()
    after = take(other.lock("one"))
    assert after.fence > lease.fence
    after.release()
    assert (other.guarantees.exclusion.value, other.guarantees.fence.value) == ("durable-authority", "durable-storage")


def _gets(client: holdfast.Client) -> bool:
    try:
        with client.lock("one", ttl=3, timeout=0):
            return True
    except holdfast.QuorumError:
        return False


def _is_busy(client: holdfast.Client) -> bool:
    """Whether it is, once enough nodes are heard to say so."""
    try:
        lease = client.lock("one").acquire(timeout=0)
    except holdfast.QuorumError:
        return False
    assert lease is None
    return True


def _await_first(coming: list[Future[holdfast.Lease]]) -> Future[holdfast.Lease]:
    done, _ = wait(coming, timeout=30, return_when=FIRST_COMPLETED)
    return done.pop()
