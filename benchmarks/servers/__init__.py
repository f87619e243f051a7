"""The servers of contenders. Each case has a server of its own, on a free port of this machine and on the cores of the
case, without persistence. The runner starts and ends it.

`Stats` has the counters that measures read. The package uses no client library, so that reading them has little effect.
"""

from __future__ import annotations

from benchmarks.servers.base import HOST, Server, ServerFailed, Stats, last_line, missing, pinned
from benchmarks.servers.etcd import Etcd
from benchmarks.servers.mariadb import Mariadb
from benchmarks.servers.memcached import Memcached
from benchmarks.servers.nats import Nats
from benchmarks.servers.postgresql import Postgresql
from benchmarks.servers.redis import Redis, RedisNodes
from benchmarks.servers.zookeeper import Zookeeper

__all__ = [
    "HOST",
    "Etcd",
    "Mariadb",
    "Memcached",
    "Nats",
    "Postgresql",
    "Redis",
    "RedisNodes",
    "Server",
    "ServerFailed",
    "Stats",
    "Zookeeper",
    "last_line",
    "missing",
    "pinned",
]
