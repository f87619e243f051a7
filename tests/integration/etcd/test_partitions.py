"""A holder that is cut off at any moment reports its loss before another client acquires the lock.

Here a proxy cuts connections, which needs no root; test_networks.py loses packets, and also cuts off servers.
"""

from __future__ import annotations

import threading
import time

import holdfast
from holdfast.runtimes import system
from tests.integration.conftest import OpenClient
from tests.support.etcd import shared
from tests.support.etcd.servers import Server
from tests.support.redis.proxy import Proxy

TIMES = 20
TTL = 3.0


def test_a_partitioned_holder_reports_its_loss_before_the_next_grant(server: Server, open_client: OpenClient) -> None:
    lost: dict[int, float] = {}
    granted: dict[int, float] = {}

    def wait_for(number: int, client: holdfast.Client) -> None:
        lease = client.lock(f"lock {number}").acquire(timeout=60)
        assert lease is not None
        granted[number] = system.now()
        lease.release()

    prefix = shared.fresh_url().partition("prefix=")[2].replace("%2F", "/")
    with Proxy(server.port) as proxy:
        leases = []
        for number in range(TIMES):
            # Each holder has its own client, so that the cut is at a different moment between keep-alives for each.
            holder = open_client(f"etcd://127.0.0.1:{proxy.port}", prefix=prefix)
            on_lost = lambda _, which=number: lost.setdefault(which, system.now())  # noqa: E731
            leases.append(holder.lock(f"lock {number}", ttl=TTL, on_lost=on_lost).acquire(timeout=10))
            time.sleep(TTL / 3 / TIMES)
        other = open_client(server.url, prefix=prefix)
        threads = [threading.Thread(target=wait_for, args=(number, other)) for number in range(TIMES)]
        for thread in threads:
            thread.start()
        time.sleep(TTL)  # long enough for a renewal of each lease
        assert not lost

        proxy.lose_requests()
        proxy.lose_replies()
        for thread in threads:
            thread.join(60)
        proxy.refuse()

    assert lost.keys() == granted.keys() == set(range(TIMES))
    assert [number for number in range(TIMES) if lost[number] >= granted[number]] == []
    assert all(lease is not None and lease.lost for lease in leases)
