"""Hazard: lost requests and replies. In the end the lock is free or held by its holder."""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.support.nats.servers import Server
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy, Then

THEN = pytest.mark.parametrize("then", ["cut", "hang"])


def take(client: holdfast.Client, name: str, ttl: float = 30) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=0)
    assert lease is not None
    return lease


@THEN
def test_a_lost_reply_to_an_acquire_is_recovered_by_the_nonce(
    url: str, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(proxied)
    take(client, "warm").release()
    proxy.lose_next_reply(".lock.a ", then=then)

    lease = client.lock("a", ttl=60).acquire(timeout=20)

    proxy.await_loss()
    assert lease is not None
    assert [holder.fence for holder in open_client(url).inspect("a").holders] == [lease.fence]
    lease.renew()
    lease.release()
    take(open_client(url), "a").release()


def test_an_acquire_without_an_answer_leaves_no_lease(
    url: str, proxy: Proxy, proxied: str, open_client: OpenClient
) -> None:
    client = open_client(proxied)
    take(client, "warm").release()
    proxy.lose_replies()
    with pytest.raises(holdfast.BackendError):
        client.lock("a", ttl=600).acquire(timeout=0)

    proxy.heal()
    proxy.cut()

    other = open_client(url)
    eventually(lambda: not other.inspect("a").holders)
    take(other, "a").release()


@THEN
def test_a_lost_reply_to_a_renewal_does_not_lose_the_lease(
    proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    lease = take(open_client(proxied), "a", ttl=20)
    proxy.lose_next_reply(".lock.a ", then=then)

    proxy.await_loss()

    eventually(lambda: lease.remaining > 15)
    assert not lease.lost
    lease.release()


@THEN
def test_a_release_is_repeated_when_its_reply_is_lost(  # noqa: PLR0917 (fixtures)
    server: Server, bucket: str, url: str, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    lease = take(open_client(proxied), "a", ttl=600)
    proxy.lose_next_reply("KV-Operation: PURGE", then=then)

    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()

    take(open_client(url), "a").release()
    assert server.entry(bucket, "lock.a")["headers"]["KV-Operation"] == "PURGE"
