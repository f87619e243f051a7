"""Hazard: memcached stores by a clock that it reads once a second, and not while it is paused.

An item stored just after a pause expires early by the length of the pause: a lease would end on the server while its
holder still counts on it.
"""

from __future__ import annotations

import math
import time

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.memcached.conftest import StartServer
from tests.integration.memcached.helpers import in_background, item, take
from tests.support.memcached.servers import Server
from tests.support.processes import eventually

PAUSE = 4.0
SECONDS = 60


def test_memcached_expires_an_item_early_when_its_request_waited_for_a_paused_server(start_server: StartServer) -> None:
    """This shows that clock_check.py is needed. It is a race: of a dozen items, some expire early."""
    servers = [start_server() for _ in range(4)]
    shortest = math.inf
    for _ in range(3):
        connections = [server.connect() for server in servers]
        for server in servers:
            server.stop()
        time.sleep(PAUSE)
        for connection in connections:
            connection.send(b"ms a 1 T%d\r\nx\r\n" % SECONDS)
        for server in servers:
            server.resume()
        for connection in connections:
            connection.receive()
        time.sleep(0.2)  # so that its clock ticks
        seconds_left = [connection.call(b"mg a t\r\n").seconds_left for connection in connections]
        for connection in connections:
            connection.close()
        shortest = min(shortest, *seconds_left)
        if shortest < SECONDS - 2:
            break

    assert shortest < SECONDS - 2, "no item expired early: is this another memcached?"


@pytest.mark.parametrize("pause", [1.5, 3.5])
def test_a_lease_acquired_at_a_pause_lives_on_the_server_until_its_deadline(
    server: Server, open_client: OpenClient, pause: float
) -> None:
    clients = [open_client(f"{server.url}?connect_timeout=10") for _ in range(6)]
    known, strangers = clients[:3], clients[3:]  # these connect for the first time while it is stopped
    for number, client in enumerate(known):
        take(client, f"warm-{number}").release()

    server.stop()
    taking = [
        in_background(lambda c=client, n=number: c.lock(f"a-{n}", ttl=20, renew=False).acquire(timeout=20))  # type: ignore[misc]
        for number, client in enumerate([*known, *strangers])
    ]
    time.sleep(pause)
    server.resume()
    leases = [future.result(30) for future in taking]

    eventually(lambda: int(server.stats()["uptime"]) > 0)
    time.sleep(0.2)  # so that its clock ticks
    for number, lease in enumerate(leases):
        assert lease is not None
        on_server, at_holder = item(server, f"a-{number}").seconds_left, lease.remaining
        assert on_server >= at_holder, f"{number}: {on_server} s on the server, {at_holder} s at the holder"
        lease.release()


def test_a_lease_renewed_after_a_pause_lives_on_the_server_until_its_deadline(
    server: Server, open_client: OpenClient
) -> None:
    lease = take(open_client(server.url), "a", ttl=30, renew=False)

    server.stop()
    renewing = in_background(lease.renew)
    time.sleep(PAUSE)
    server.resume()
    renewing.result(30)

    time.sleep(0.2)  # so that its clock ticks
    assert item(server, "a").seconds_left >= lease.remaining
    lease.release()


def test_a_holder_loses_its_lease_by_its_own_clock_while_the_server_is_stopped(
    server: Server, open_client: OpenClient
) -> None:
    lease = take(open_client(server.url), "a", ttl=3)

    server.stop()
    began = time.monotonic()
    assert lease.wait_lost(30)
    assert time.monotonic() - began < 15, "a request to the server would have waited for it"
    server.resume()

    with pytest.raises(holdfast.LockLost):
        lease.release()


@pytest.mark.parametrize("ttl", [0.5, 1.0, 2.5])
def test_a_lease_lives_on_the_server_until_its_deadline(server: Server, open_client: OpenClient, ttl: float) -> None:
    client, observer = open_client(server.url), open_client(server.url)
    lease = client.lock("a", ttl=ttl, renew=False).acquire(timeout=0)
    assert lease is not None

    polls = 0
    while True:
        shown = observer.inspect("a").holders
        if lease.lost:
            break
        assert [holder.fence for holder in shown] == [lease.fence]
        polls += 1
    assert polls
