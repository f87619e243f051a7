"""Servers that contenders talk to: each case has one of its own, on a free port of this machine and on the cores of
the case, with nothing kept on disk. The runner starts and ends it.

What a measure may ask a server is in `Stats`. Not here: any client library, so that counting disturbs nobody.
"""

from __future__ import annotations

from benchmarks.servers.base import HOST, Server, ServerFailed, Stats, last_of, launch, missing
from benchmarks.servers.etcd import Etcd
from benchmarks.servers.mariadb import Mariadb
from benchmarks.servers.memcached import Memcached
from benchmarks.servers.postgresql import Postgresql
from benchmarks.servers.redis import Redis, RedisNodes
from benchmarks.servers.zookeeper import Zookeeper

__all__ = [
    "HOST",
    "Etcd",
    "Mariadb",
    "Memcached",
    "Postgresql",
    "Redis",
    "RedisNodes",
    "Server",
    "ServerFailed",
    "Stats",
    "Zookeeper",
    "last_of",
    "launch",
    "missing",
]
