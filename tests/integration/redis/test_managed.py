"""Hazard: a managed server that forbids INFO or CONFIG is refused, or is believed to be safer than is known.

Providers rename or remove commands (`rename-command`), or give out a user whose ACL lacks them.
"""

from __future__ import annotations

import logging

import pytest

import holdfast
from holdfast.guarantees import Exclusion
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, take
from tests.support.processes import eventually
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Watched

FORBIDDEN = ("INFO", "CONFIG", "ROLE", "CLIENT", "SCRIPT", "DEBUG", "MONITOR", "SLOWLOG", "ACL")
ACL = "resetchannels ~holdfast:* &holdfast:* +@all -@dangerous -@admin -client -script -role"
POLICY = "does not report its maxmemory-policy"
FSYNC = "does not report appendfsync"


def renamed(*commands: str) -> list[str]:
    return [word for command in commands for word in ("--rename-command", command, "")]


def use(client: holdfast.Client, other: holdfast.Client) -> None:
    """Call every function that programs use for locks."""
    lease = take(client.lock("one", ttl=30))
    pending = acquiring(other.lock("one"))
    eventually(lambda: len(client.inspect("one").waiters) == 1)
    lease.renew()
    assert [info.name for info in client.locks()] == ["one"]
    lease.release()
    pending.result().release()
    with client.semaphore("two", 2), client.rwlock("three").read(), client.lock_all(["a", "b"]):
        pass
    assert client.once_per("365d", name="job")(lambda: True)()


def check_unknown(client: holdfast.Client) -> None:
    assert client.guarantees.exclusion is Exclusion.CACHE
    assert [POLICY in warning for warning in client.warnings] == [True]


def test_locks_work_on_a_server_without_the_commands_that_providers_remove(
    start_server: StartServer, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = start_server(*renamed(*FORBIDDEN))
    client, other = open_client(server.url), open_client(server.url)

    use(client, other)

    check_unknown(client)
    assert sum(POLICY in record.getMessage() for record in caplog.records) == 2  # once for each client


@pytest.fixture
def limited_url(start_server: StartServer) -> str:
    """A server with a user who may do nothing but use locks."""
    server = start_server()
    server.call("ACL", "SETUSER", "locks", "on", ">s3cret", *ACL.split())
    return f"redis://locks:s3cret@{server.address}/0"


def test_locks_work_for_a_user_without_dangerous_commands(limited_url: str, open_client: OpenClient) -> None:
    client = open_client(limited_url)

    use(client, open_client(limited_url))

    check_unknown(client)


async def test_tasks_can_lock_for_a_user_without_dangerous_commands(limited_url: str) -> None:
    async with holdfast.AsyncClient(limited_url) as client, client.lock("one", timeout=30):
        assert client.guarantees.exclusion is Exclusion.CACHE
        assert client.warnings


def test_require_refuses_a_guarantee_that_is_not_known(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always", *renamed("INFO", "CONFIG"))

    with pytest.raises(holdfast.ConfigurationError, match="exclusion is cache, not"):
        open_client(server.url, require={"exclusion": "best-effort"}).lock("one").acquire(timeout=0)


DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize(
    ("options", "exclusion", "warning"),
    [
        ((*DURABLE, *renamed("CONFIG")), Exclusion.BEST_EFFORT, FSYNC),
        ((*DURABLE, *renamed("INFO")), Exclusion.DURABLE_AUTHORITY, ""),
        (renamed("INFO"), Exclusion.BEST_EFFORT, ""),
        (renamed("CONFIG"), Exclusion.BEST_EFFORT, ""),
        (renamed("INFO", "CONFIG"), Exclusion.CACHE, POLICY),
    ],
    ids=["fsync unknown", "durable by CONFIG", "plain by CONFIG", "plain by INFO", "nothing known"],
)
def test_the_guarantees_are_those_that_the_server_reports(
    start_server: StartServer, open_client: OpenClient, options: list[str], exclusion: Exclusion, warning: str
) -> None:
    client = open_client(start_server(*options).url)

    take(client.lock("one")).release()

    assert client.guarantees.exclusion is exclusion
    assert [warning in each for each in client.warnings] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("method", "exclusion"), [("setnx", Exclusion.DURABLE_AUTHORITY), ("getset", Exclusion.BEST_EFFORT)]
)
def test_exclusion_of_getset_depends_on_the_clocks_of_clients_also_on_a_durable_server(
    start_server: StartServer, open_client: OpenClient, method: str, exclusion: Exclusion
) -> None:
    client = open_client(f"{start_server(*DURABLE).url}?method={method}")

    take(client.lock("one")).release()

    assert client.guarantees.exclusion is exclusion


def test_a_server_that_evicts_is_refused_without_info_when_config_shows_it(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru", *renamed("INFO"))

    with pytest.raises(holdfast.ConfigurationError, match="maxmemory-policy is allkeys-lru"):
        open_client(server.url).lock("one").acquire(timeout=0)


@pytest.mark.parametrize("method", ["setnx", "getset"])
def test_other_methods_work_for_a_user_without_dangerous_commands(
    limited_url: str, open_client: OpenClient, method: str
) -> None:
    client = open_client(f"{limited_url}?method={method}")

    with client.lock("one"):
        check_unknown(client)


def allow(servers: list[Server]) -> None:
    for server in servers:
        server.call("ACL", "SETUSER", "locks", "on", ">s3cret", *ACL.split())


def test_locks_work_on_a_limited_cluster(cluster: Cluster, open_client: OpenClient) -> None:
    allow(cluster.servers)
    url = cluster.url.replace("://", "://locks:s3cret@")
    client, other = open_client(url), open_client(url)

    use(client, other)

    check_unknown(client)


def test_a_client_of_a_limited_primary_follows_a_failover(watched: Watched, open_client: OpenClient) -> None:
    allow([watched.primary, watched.replica])
    client = open_client(watched.url.replace("://", "://locks:s3cret@"))
    before = take(client.lock("one"))
    before.release()
    check_unknown(client)

    watched.fail_over()

    after = take(client.lock("one"), timeout=30)
    assert after.fence > before.fence
    after.release()
