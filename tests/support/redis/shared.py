"""Servers for all tests that need any Redis: started at first use, stopped with the test run."""

from __future__ import annotations

import functools
import uuid

from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import RedlockServers
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster
from tests.support.server_process import for_all_workers, until_exit


def fresh_url(**options: str) -> str:
    """One server, with keys that no other test uses."""
    return _with_options(_server().url, options)


def fresh_cluster_url(**options: str) -> str:
    """The same on a Cluster."""
    return _with_options(_cluster().url, options)


def fresh_redlock_url(**options: str) -> str:
    """The same on five independent servers. They have just been started, and have lost no data.

    None of them is ever silent, however long it takes a busy machine to ask it.
    """
    return _with_options(_redlock().url(), {"quarantine": "no", "node_timeout": "5", **options})


def _with_options(url: str, options: dict[str, str]) -> str:
    options = {"prefix": f"{uuid.uuid4().hex}:", **options}
    return f"{url}?{'&'.join(f'{option}={value}' for option, value in options.items())}"


@functools.cache
def _server() -> Server:
    return until_exit(lambda folder: Server(main_binary(), folder))


@functools.cache
def _cluster() -> Cluster:
    return for_all_workers(lambda folder: Cluster(main_binary(), folder), "redis-cluster")


@functools.cache
def _redlock() -> RedlockServers:
    return for_all_workers(lambda folder: RedlockServers(main_binary(), folder), "redlock")
