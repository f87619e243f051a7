"""Hazard: requests and replies that get lost. Whatever was done, the lock is nobody's in the end, or its holder's."""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.memcached.conftest import OpenClient
from tests.integration.memcached.helpers import in_background, item, take
from tests.support.memcached.servers import Server
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy, Then

FREE = b"holdfast:free"


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_an_add_whose_reply_is_lost_is_found_to_be_ours(
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


def test_an_acquire_that_hears_nothing_leaves_nothing(
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
def test_a_renewal_whose_reply_is_lost_loses_no_lease(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(f"{proxied}?io_timeout=1")
    lease = take(client, "a", ttl=6)
    proxy.lose_next_reply("ms holdfast:a", then=then)

    proxy.await_loss()

    # The item has another version now than the one that its holder knows.
    eventually(lambda: lease.remaining > 5)
    assert not lease.lost
    lease.release()
    assert item(server, "a").code == "EN"


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_a_release_whose_reply_is_lost_is_repeated_and_ends_well(
    server: Server, proxy: Proxy, proxied: str, open_client: OpenClient, then: Then
) -> None:
    client = open_client(f"{proxied}?io_timeout=1")
    lease = take(client, "a", ttl=600)
    proxy.lose_next_reply("md holdfast:a", then=then)

    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()
    lease.release()

    assert item(server, "a").code == "EN"


def test_an_add_that_comes_late_finds_that_its_ticket_has_gone(server: Server, open_client: OpenClient) -> None:
    """The server stands still while it is told; the client gives up; then it does what it was told."""
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


def test_what_stands_there_for_a_late_add_keeps_nobody_out(
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

    assert item(server, "a").value == FREE, "it may come after the next one, too"
    assert server.call(b"ms holdfast:a 4 ME T600\r\nlate\r\n").code == "NS"
    take(other, "a").release()


def test_a_waiter_outlasts_a_server_that_is_away(server: Server, open_client: OpenClient) -> None:
    holder, waiter = open_client(server.url), open_client(server.url)
    take(holder, "a", ttl=30)
    waiting = in_background(lambda: waiter.lock("a", ttl=30).acquire(timeout=60))
    eventually(lambda: int(server.stats()["get_hits"]) > 3)

    server.kill()
    server.start()

    lease = waiting.result(60)
    assert lease is not None, "the lock was gone with the server"
    lease.release()


def test_nobody_is_there(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    server.kill()

    with pytest.raises(holdfast.BackendUnavailable, match="cannot connect"):
        client.lock("a").acquire(timeout=0)
