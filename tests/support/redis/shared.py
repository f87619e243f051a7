"""Servers for all tests that need any Redis: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable

from tests.support.permissions import statements
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster
from tests.support.server_process import for_all_workers, until_exit

# Run the background tasks once a second, because they are most of the work of the servers that run until the end.
_IDLE = ("--hz", "1")


def fresh_url(**options: str) -> str:
    """One server, with keys that no other test uses."""
    return _with_options(server().url, options)


def fresh_cluster_url(**options: str) -> str:
    """The same on a Cluster."""
    return _with_options(_cluster().url, options)


def fresh_redlock_url(**options: str) -> str:
    """The same on five independent servers. They have lost no data, so they need no
    quarantine. The node timeout is long, so that no node seems to be down on a busy machine.
    """
    return _with_options(_redlock().url(), {"quarantine": "no", "node_timeout": "5", **options})


def restricted_url(**options: str) -> str:
    """As `fresh_url`, with a user that has only the permissions of the docs."""
    method = options.get("method", "queue")
    return _restricted(fresh_url(**options), [server()], *permissions_of(f"method={method}"))


def restricted_cluster_url() -> str:
    acl = [*permissions_of("method=queue"), *statements("redis", "For a Cluster")]
    return _restricted(fresh_cluster_url(), _cluster().servers, *acl)


def restricted_redlock_url() -> str:
    return _restricted(fresh_redlock_url(), _redlock().servers, *statements("redlock", "On each node"))


def permissions_of(method: str) -> list[str]:
    """All that a program can use: the necessary permissions, and those for notifications, operators and guarantees."""
    acl = statements("redis", method)
    for heading in ("For notifications", "For operators", "For the guarantees"):
        acl += statements("redis", heading)
    if main_binary().version < (7,):  # no sharded channels
        acl = [line for line in acl if "+spublish" not in line]
    return acl


def allow(servers: Iterable[Server], acl: Iterable[str], *, user: str, prefix: str) -> None:
    """Run the statements of the docs on all servers, for this user and prefix. The password is `secret`."""
    words = [line.replace("holdfast:", prefix).replace(" app ", f" {user} ").split() for line in acl]
    for server in servers:
        with server.connect() as connection:
            for line in words:
                connection.call(*line)


def _restricted(url: str, servers: Iterable[Server], *acl: str) -> str:
    """The URL with a new user, which may use the keys of its prefix only."""
    prefix = url.partition("prefix=")[2].partition("&")[0]
    user = prefix.removesuffix(":")
    allow(servers, acl, user=user, prefix=prefix)
    scheme, _, location = url.partition("://")
    if scheme == "redlock":  # each node has its own login
        hosts, _, options = location.partition("?")
        return f"redlock://{','.join(f'{user}:secret@{host}' for host in hosts.split(','))}?{options}"
    return f"{scheme}://{user}:secret@{location}"


def _with_options(url: str, options: dict[str, str]) -> str:
    options = {"prefix": f"{uuid.uuid4().hex}:", **options}
    return f"{url}?{'&'.join(f'{option}={value}' for option, value in options.items())}"


@functools.cache
def server() -> Server:
    return until_exit(lambda folder: Server(main_binary(), folder, options=_IDLE))


@functools.cache
def _cluster() -> Cluster:
    return for_all_workers(
        lambda folder: Cluster(main_binary(), folder, replicas=False), "redis-cluster", prepare=_raise_node_timeout
    )


def _raise_node_timeout(cluster: Cluster) -> None:
    """Raise the node timeout, so that no node of this Cluster seems to have failed on a busy machine."""
    for server in cluster.servers:
        server.call("CONFIG", "SET", "cluster-node-timeout", "15000")


@functools.cache
def _redlock() -> RedlockServers:
    return for_all_workers(lambda folder: RedlockServers(main_binary(), folder, _IDLE), "redlock")
