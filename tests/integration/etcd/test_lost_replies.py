"""Hazard: a request that arrives late, or whose answer is lost, leaves a key, or acquires a lock without a holder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.backends.etcd.config import config_of
from holdfast.backends.etcd.io.cluster import backend_on
from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.core.tickets import Claim
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.sim.mutants.base import replaced
from tests.integration.conftest import OpenClient
from tests.integration.etcd.harness import FaultyCluster
from tests.integration.etcd.helpers import acquired, waiting
from tests.support.etcd import shared
from tests.support.etcd.servers import Server
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.fixture(params=["queue", "key"])
def prefix_and_method(request: pytest.FixtureRequest, server: Server) -> str:
    """A prefix for this test alone, and the option `method`, as in a URL."""
    url: str = shared.fresh_url(method=request.param)
    return url.partition("prefix=")[2]


def through(proxy: Proxy, prefix_and_method: str) -> str:
    return f"etcd://127.0.0.1:{proxy.port}?prefix={prefix_and_method}"


def direct(server: Server, prefix_and_method: str) -> str:
    return f"{server.url}?prefix={prefix_and_method}"


def test_an_acquire_is_found_when_its_answer_was_lost(
    server: Server, proxy: Proxy, prefix_and_method: str, open_client: OpenClient
) -> None:
    client = open_client(through(proxy, prefix_and_method))
    acquired(client, "warm").release()
    proxy.lose_next_reply("request_put")

    lease = acquired(client, "a")

    proxy.await_loss()
    assert open_client(direct(server, prefix_and_method)).inspect("a").holders[0].fence == lease.fence
    lease.release()
    assert len(open_client(direct(server, prefix_and_method)).locks()) == 0


def test_an_abandoned_acquire_leaves_no_key(
    server: Server, proxy: Proxy, prefix_and_method: str, open_client: OpenClient
) -> None:
    client = open_client(through(proxy, prefix_and_method))
    acquired(client, "warm").release()
    proxy.lose_replies()

    with pytest.raises(holdfast.OutcomeUnknown):
        client.lock("a").acquire(timeout=0)
    proxy.cut()
    proxy.heal()

    acquired(open_client(direct(server, prefix_and_method)), "a").release()


@pytest.mark.parametrize("limit", [1, 3])
def test_an_acquire_does_nothing_when_it_arrives_after_a_withdrawal(
    server: Server, prefix_and_method: str, limit: int
) -> None:
    config = config_of(parse(direct(server, prefix_and_method)))
    if config.method == "key" and limit > 1:
        pytest.skip("method=key has no permits")
    runtime = ThreadRuntime()
    cluster = FaultyCluster(config, BlockingPoller(), BackgroundThreads(), runtime)
    backend = backend_on(cluster, config, runtime)
    ticket = Claim("a", "f" * 32, 30.0, limit, limit == 1, "me", '{"who": {}, "meta": {}}')
    earlier = replaced(ticket, nonce="0" * 32)
    run_sync(backend.try_acquire(earlier, queue=False, deadline=system.now() + 5))
    run_sync(backend.release([earlier], deadline=system.now() + 5))

    cluster.hold_next = True
    with pytest.raises(holdfast.OutcomeUnknown):
        run_sync(backend.try_acquire(ticket, queue=True, deadline=system.now() + 5))
    run_sync(backend.release([ticket], deadline=system.now() + 5))
    late_answer = cluster.deliver()

    assert not late_answer.message.get("succeeded")
    assert run_sync(backend.locks("", deadline=system.now() + 5)) == []
    run_sync(backend.close())


def test_a_release_is_repeated_when_its_answer_was_lost(
    server: Server, proxy: Proxy, prefix_and_method: str, open_client: OpenClient
) -> None:
    client = open_client(through(proxy, prefix_and_method))
    lease = acquired(client, "a")
    proxy.lose_next_reply("delete")

    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()

    acquired(open_client(direct(server, prefix_and_method)), "a").release()
    eventually(lambda: not client._engine._keeper._schedule.pending)


def test_a_waiter_is_notified_after_its_connections_were_cut(
    server: Server, proxy: Proxy, prefix_and_method: str, open_client: OpenClient
) -> None:
    if "method=key" in prefix_and_method:
        pytest.skip("method=key has no queue, so its waiters are not listed")
    lease = acquired(open_client(direct(server, prefix_and_method)), "a")

    with waiting(open_client(through(proxy, prefix_and_method)), "a") as leases:
        before = proxy.connections_made
        proxy.cut()
        eventually(lambda: proxy.connections_made > before)
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_closed_client_leaves_no_key(server: Server, open_client: OpenClient) -> None:
    url = shared.fresh_url()
    prefix = url.partition("prefix=")[2].replace("%2F", "/")
    client = open_client(url)

    acquired(client, "a").release()
    client.close()

    assert server.keys(prefix) == []
