"""Hazard: lost requests and replies. In the end the lock is free or held by its holder."""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.memcached.helpers import in_background, item, take
from tests.support.memcached.servers import Server
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy, Then

FREE = b"holdfast:free"


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_a_lost_reply_to_an_add_is_recovered_by_the_nonce(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(f"{proxied}?io_timeout=1")
    take(client, "warm").release()
    proxy.lose_next_reply(" ME T", then=then)

    lease = client.lock("a", ttl=30).acquire(timeout=10)

    proxy.await_loss()
    assert lease is not None
    assert [holder.fence for holder in open_client(server.url).inspect("a").holders] == [lease.fence]
    lease.renew()
    lease.release()
    assert item(server, "a").code == "EN" or item(server, "a").value == FREE


def test_a_lost_request_is_sent_again(server: Server, proxy: Proxy, proxied: str, open_client: OpenClient) -> None:
    client = open_client(proxied)
    take(client, "warm").release()
    proxy.lose_next_request(" ME T")

    lease = client.lock("a", ttl=30).acquire(timeout=10)

    assert lease is not None
    lease.release()
    take(open_client(server.url), "a").release()


def test_an_acquire_without_an_answer_leaves_no_lease(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient
) -> None:
    client = open_client(f"{proxied}?io_timeout=0.5")
    take(client, "warm").release()
    proxy.lose_replies()
    with pytest.raises(holdfast.BackendError):
        client.lock("a", ttl=600).acquire(timeout=0)

    proxy.heal()
    proxy.cut()

    other = open_client(server.url)
    eventually(lambda: not other.inspect("a").holders)
    take(other, "a").release()


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_a_lost_reply_to_a_renewal_does_not_lose_the_lease(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(f"{proxied}?io_timeout=1")
    lease = take(client, "a", ttl=6)
    proxy.lose_next_reply("ms holdfast:a", then=then)

    proxy.await_loss()

    # The item has another version than its holder knows.
    eventually(lambda: lease.remaining > 5)
    assert not lease.lost
    lease.release()
    assert item(server, "a").code == "EN"


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_a_release_is_repeated_when_its_reply_is_lost(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(f"{proxied}?io_timeout=1")
    lease = take(client, "a", ttl=600)
    proxy.lose_next_reply("md holdfast:a", then=then)

    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()
    lease.release()

    assert item(server, "a").code == "EN"


def test_a_late_add_has_no_effect_after_the_release(server: Server, open_client: OpenClient) -> None:
    """The server is stopped when the add arrives, the client gives up, then the server executes the add."""
    client = open_client(f"{server.url}?io_timeout=1")
    take(client, "a").release()

    server.stop()
    with pytest.raises(holdfast.BackendError):
        client.lock("a", ttl=600).acquire(timeout=0)
    server.resume()

    other = open_client(server.url)
    lease = other.lock("a", ttl=600).acquire(timeout=20)
    assert lease is not None
    lease.release()
    eventually(lambda: not other.inspect("a").holders)


def test_a_free_item_against_a_late_add_blocks_no_client(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient
) -> None:
    client, other = open_client(f"{proxied}?io_timeout=0.5"), open_client(server.url)
    take(client, "warm").release()
    proxy.lose_requests()
    with pytest.raises(holdfast.BackendError):
        client.lock("a", ttl=600).acquire(timeout=0)
    proxy.heal()
    proxy.cut()
    eventually(lambda: item(server, "a").value == FREE)

    assert other.inspect("a").holders == ()
    assert [info.name for info in other.locks()] == []
    lease = take(other, "a")
    assert server.call(b"ms holdfast:a 4 ME T600\r\nlate\r\n").code == "NS"
    lease.release()

    assert item(server, "a").value == FREE, "the add may also arrive after the next holder's release"
    assert server.call(b"ms holdfast:a 4 ME T600\r\nlate\r\n").code == "NS"
    take(other, "a").release()


def test_a_waiter_survives_an_outage_of_the_server(server: Server, open_client: OpenClient) -> None:
    holder, waiter = open_client(server.url), open_client(server.url)
    lost = take(holder, "a", ttl=30)
    waiting = in_background(lambda: waiter.lock("a", ttl=30).acquire(timeout=60))
    eventually(lambda: int(server.stats()["get_hits"]) > 3)

    server.kill()
    server.start()

    lease = waiting.result(60)
    assert lease is not None, "the lock did not survive the server"
    lease.release()
    holder.close()
    assert not lost.held


def test_acquire_fails_when_no_server_listens(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    server.kill()

    with pytest.raises(holdfast.BackendUnavailable, match="cannot connect"):
        client.lock("a").acquire(timeout=0)
