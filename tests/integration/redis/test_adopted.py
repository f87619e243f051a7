"""Hazard: with a redis-py client object instead of a URL, the locks go to another server or use other credentials, or
the connections and settings of the object are changed.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import take
from tests.support.redis.servers import Server
from tests.support.redis.topologies import SERVICE, Cluster, Watched


def test_locks_through_a_client_object_are_the_same_as_through_its_url(server: Server, open_client: OpenClient) -> None:
    theirs = redis.Redis(port=server.port, decode_responses=True)
    with contextlib.closing(theirs), holdfast.Client(theirs) as client, client.lock("one") as lease:
        lease.renew()
        assert open_client(server.url).lock("one").acquire(timeout=0) is None
        assert theirs.set("own", "value")  # it works as before
        assert theirs.get("own") == "value"

    assert server.call("GET", "own") == "value"
    theirs.close()


def test_password_and_database_are_those_of_the_client_object(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("--requirepass", "s3cret")
    theirs = redis.Redis(port=server.port, password="s3cret", db=3)  # noqa: S106  of a server that lives for a test
    with contextlib.closing(theirs), holdfast.Client(theirs, prefix="mine:") as client, client.lock("one"):
        key_count = theirs.exists("mine:one")
        assert "s3cret" not in repr(client)

    assert key_count == 1


async def test_an_asyncio_client_needs_an_asyncio_object_and_a_blocking_client_a_blocking_one(server: Server) -> None:
    theirs: Any = redis.asyncio.Redis(port=server.port)

    async with holdfast.AsyncClient(theirs) as client, client.lock("one", timeout=10):
        assert server.call("EXISTS", "holdfast:one") == 1
    with pytest.raises(holdfast.ConfigurationError, match="asyncio"):
        holdfast.AsyncClient(redis.Redis(port=server.port))
    with pytest.raises(holdfast.ConfigurationError):
        holdfast.Client(theirs)

    await theirs.aclose()


def test_a_cluster_s_object_finds_the_slots(shared_cluster: Cluster, open_client: OpenClient) -> None:
    port = shared_cluster.servers[0].port
    theirs: Any = redis.RedisCluster(host="127.0.0.1", port=port)
    with contextlib.closing(theirs), holdfast.Client(theirs) as client:
        leases = [take(client.lock(f"adopted-{number}"), timeout=0) for number in range(10)]

        assert open_client(shared_cluster.url).lock("adopted-3").acquire(timeout=0) is None
        for lease in leases:
            lease.release()


def test_a_sentinel_s_object_follows_a_failover(watched: Watched) -> None:
    make: Any = redis.sentinel.Sentinel
    sentinel = make([("127.0.0.1", sentinel.port) for sentinel in watched.sentinels])
    theirs = sentinel.master_for(SERVICE)
    with contextlib.closing(theirs), holdfast.Client(theirs) as client:
        before = take(client.lock("one"))
        before.release()

        watched.fail_over()

        after = take(client.lock("one"), timeout=20)
        assert after.fence > before.fence
        after.release()
    for node in sentinel.sentinels:
        node.close()


@pytest.mark.parametrize("nonsense", [42, object(), b"redis://", redis], ids=["int", "object", "bytes", "module"])
def test_an_argument_that_is_neither_a_url_nor_a_client_is_refused(nonsense: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError):
        holdfast.Client(nonsense)


class Tunnel(redis.Connection):
    """Connects elsewhere."""


class Named(redis.Redis):
    """A subclass with the ordinary connections."""


STAND_INS: dict[str, Callable[[], Any]] = {
    "fakeredis": lambda: pytest.importorskip("fakeredis").FakeRedis(),
    "fakeredis-strict": lambda: pytest.importorskip("fakeredis").FakeStrictRedis(host="cache", port=6380),
    "own-connections": lambda: redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Tunnel)),
    "mock": lambda: unittest.mock.MagicMock(spec=redis.Redis),
    "mock-of-anything": unittest.mock.Mock,
}


@pytest.mark.parametrize("stand_in", STAND_INS)
def test_a_client_with_an_unknown_connection_class_is_refused(stand_in: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"does not know.*for tests there is memory://"):
        holdfast.Client(STAND_INS[stand_in]())


async def test_an_asyncio_client_with_an_unknown_connection_class_is_refused() -> None:
    theirs = pytest.importorskip("fakeredis").FakeAsyncRedis()

    with pytest.raises(holdfast.ConfigurationError, match=r"does not know.*for tests there is memory://"):
        holdfast.AsyncClient(theirs)


def test_a_client_of_a_subclass_is_accepted_if_its_connection_class_is_known(server: Server) -> None:
    theirs = Named(port=server.port)
    with contextlib.closing(theirs), holdfast.Client(theirs) as client, client.lock("one"):
        assert server.call("EXISTS", "holdfast:one") == 1
