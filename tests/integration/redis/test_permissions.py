"""Hazard: the documented ACL allows too little, or more than locks need.

The conformance suite runs with these users. The tests here show that each documented command is used.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, take
from tests.support.permissions import statements, use_everything
from tests.support.processes import eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.redis.servers import Server
from tests.support.redis.shared import allow, permissions_of
from tests.support.redis.topologies import Cluster, Watched

EXPIRED = "holdfast:getset:0123456789abcdef0123456789abcdef:1000000:1"  # method=getset acquires this expired lock


def executed(servers: list[Server]) -> set[str]:
    """The commands that were run, in scripts too, and not refused."""
    commands = set()
    for server in servers:
        for name, stats in server.info("commandstats").items():
            if not stats.startswith("calls=0,"):
                commands.add(name.removeprefix("cmdstat_"))
    return commands


def commands(lines: list[str]) -> set[str]:
    return {word.removeprefix("+") for line in lines for word in line.split() if word.startswith("+")}


@pytest.mark.parametrize("method", ["queue", "setnx", "getset"])
def test_every_permission_of_the_docs_is_used(start_server: StartServer, method: str) -> None:
    server = start_server()
    needed = statements("redis", f"method={method}")
    allow([server], [*needed, *statements("redis", "For operators")], user="app", prefix="holdfast:")
    if method == "getset":
        server.call("SET", "holdfast:a", EXPIRED)

    use_everything(f"redis://app:secret@{server.address}/0?method={method}")

    assert commands(needed) <= executed([server])


def test_every_permission_of_a_node_is_used(tmp_path: Path) -> None:
    with RedlockServers(main_binary(), tmp_path, number=3) as redlock:
        needed = statements("redlock", "On each node")
        allow(redlock.servers, needed, user="app", prefix="holdfast:")
        hosts = ",".join(f"app:secret@{address}" for address in redlock.addresses)

        use_everything(f"redlock://{hosts}?quarantine=no&max_ttl=100")

        subscriber = {"ping", "unsubscribe"}  # sent by an idle subscriber, after some seconds
        assert commands(needed) - subscriber <= executed(redlock.servers)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ("-evalsha", holdfast.AccessDenied, "evalsha"),
        ("resetkeys", holdfast.AccessDenied, "keys"),
        ("-set", holdfast.OutcomeUnknown, "the commands of docs/backends/redis-permissions.md"),
        ("-time", holdfast.OutcomeUnknown, "`ACL LOG`"),
    ],
)
def test_the_error_names_the_missing_permission(
    start_server: StartServer, open_client: OpenClient, rule: str, error: type[holdfast.HoldfastError], message: str
) -> None:
    server = start_server()
    allow([server], permissions_of("method=queue"), user="app", prefix="holdfast:")
    server.call("ACL", "SETUSER", "app", rule)
    client = open_client(f"redis://app:secret@{server.address}/0")

    with pytest.raises(error, match=message) as refused:
        client.lock("one").acquire(timeout=30)

    assert type(refused.value) is error


def test_a_database_needs_the_permission_to_select_it(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server()
    allow([server], permissions_of("method=queue"), user="app", prefix="holdfast:")
    client = open_client(f"redis://app:secret@{server.address}/1")
    with pytest.raises(holdfast.AccessDenied, match="select"):
        client.lock("one").acquire(timeout=0)

    server.call("ACL", "SETUSER", "app", "+select")

    take(client.lock("one"), timeout=0).release()


def test_waiters_poll_when_notifications_are_not_allowed(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server()
    allow([server], statements("redis", "method=queue"), user="app", prefix="holdfast:")
    client, other = (open_client(f"redis://app:secret@{server.address}/0") for _ in range(2))
    lease = take(client.lock("one"))
    pending = acquiring(other.lock("one"))
    eventually(lambda: len(client.inspect("one").waiters) == 1)

    lease.release()

    pending.result().release()


def test_a_map_of_the_cluster_needs_a_permission(cluster: Cluster, open_client: OpenClient) -> None:
    allow(cluster.servers, permissions_of("method=queue"), user="app", prefix="holdfast:")
    client = open_client(cluster.url.replace("://", "://app:secret@"))
    with pytest.raises(holdfast.AccessDenied, match="cluster"):
        client.lock("one").acquire(timeout=0)

    allow(cluster.servers, statements("redis", "For a Cluster"), user="app", prefix="holdfast:")

    take(client.lock("one"), timeout=30).release()


def test_sentinels_need_one_permission(watched: Watched, open_client: OpenClient) -> None:
    allow([watched.primary, watched.replica], permissions_of("method=queue"), user="app", prefix="holdfast:")
    for sentinel in watched.sentinels:
        sentinel.call("ACL", "SETUSER", "finder", "on", ">secret")
    url = watched.url.replace("://", "://app:secret@") + "?sentinel_user=finder&sentinel_password=secret"
    client = open_client(url)
    with pytest.raises(holdfast.AccessDenied, match="sentinel"):
        client.lock("one").acquire(timeout=0)

    for sentinel in watched.sentinels:
        sentinel.call("ACL", "SETUSER", "finder", "+sentinel|get-master-addr-by-name")

    take(client.lock("one"), timeout=30).release()


def test_nodes_that_refuse_the_user_do_not_count(tmp_path: Path, open_client: OpenClient) -> None:
    with RedlockServers(main_binary(), tmp_path, number=3) as redlock:
        allow(redlock.servers, statements("redlock", "On each node"), user="app", prefix="holdfast:")
        hosts = ",".join(f"app:secret@{address}" for address in redlock.addresses)
        url = f"redlock://{hosts}?quarantine=no&node_timeout=5"

        redlock.servers[0].call("ACL", "SETUSER", "app", "resetkeys")
        take(open_client(url).lock("one"), timeout=0).release()
        redlock.servers[1].call("ACL", "SETUSER", "app", "resetkeys")
        with pytest.raises(holdfast.QuorumError, match="lacks a permission") as refused:
            open_client(url).lock("one").acquire(timeout=0)

        causes = [type(cause) for cause in refused.value.causes.values()]
        assert causes == [holdfast.AccessDenied, holdfast.AccessDenied]
