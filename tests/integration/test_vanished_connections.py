"""Hazard: connections that vanish silently: a NAT or load balancer drops them, a virtual address moves.

New connections work at once. So one request may wait in vain for an answer, but no second one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

import holdfast
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.processes import eventually
from tests.support.redis import shared as redis
from tests.support.redis.proxy import Proxy

BURST = 4  # connections that are open when they vanish
FRESH_URLS: dict[str, Callable[[], str]] = {
    "redis": redis.fresh_url,
    "memcached": memcached.fresh_url,
    "etcd": etcd.fresh_url,
    "mysql": mysql.fresh_url,
    "postgresql": lambda: postgresql.fresh_url(sslmode="disable"),
}
# Here each lock has its own connection, and its lease is lost with it; some are kept for the next lock.
OWN_CONNECTIONS: dict[str, Callable[[], str]] = {
    "mysql-row": lambda: mysql.fresh_url(method="row"),
    "postgresql-advisory": lambda: postgresql.fresh_url(method="advisory", sslmode="disable"),
}


@pytest.fixture(params=FRESH_URLS)
def url(request: pytest.FixtureRequest) -> str:
    return (FRESH_URLS | OWN_CONNECTIONS)[request.param]()


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    port = urlsplit(url).port
    assert port
    with Proxy(port) as made:
        yield made


@pytest.fixture
def client(url: str, proxy: Proxy) -> Iterator[holdfast.Client]:
    made = holdfast.Client(through(proxy, url))
    yield made
    made.close()


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{urlsplit(url).port}", f":{proxy.port}", 1)


def burst(client: holdfast.Client) -> None:
    """Make several connections idle at the same time."""
    with client.lock("warm", timeout=30):
        pass
    together = threading.Barrier(BURST)

    def use(number: int) -> None:
        together.wait(30)
        for _ in range(5):
            with client.lock(f"burst {number}", timeout=30):
                pass

    threads = [threading.Thread(target=use, args=(number,)) for number in range(BURST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize("url", [*FRESH_URLS, *OWN_CONNECTIONS], indirect=True)
def test_a_lock_is_acquired_before_the_timeout(client: holdfast.Client, proxy: Proxy) -> None:
    burst(client)
    proxy.forget()

    lease = client.lock("a").acquire(timeout=20)  # a request gets 5 s of it

    assert lease is not None
    lease.release()


def test_a_lease_survives_vanished_connections(client: holdfast.Client, proxy: Proxy) -> None:
    burst(client)
    lease = client.lock("job", ttl=8).acquire(timeout=30)
    assert lease is not None
    renewals: list[holdfast.Event] = []
    client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)

    proxy.forget()

    eventually(lambda: len(renewals) >= 2 or lease.lost, within=30)
    assert lease.held
    lease.release()


async def test_a_lease_on_asyncio_survives_vanished_connections(url: str, proxy: Proxy) -> None:
    async with holdfast.AsyncClient(through(proxy, url)) as client:
        lease = await client.lock("job", ttl=8).acquire(timeout=30)
        assert lease is not None
        renewals: list[holdfast.Event] = []
        client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)

        proxy.forget()

        while len(renewals) < 2 and not lease.lost:
            await asyncio.sleep(0.02)
        assert lease.held
        await lease.release()
