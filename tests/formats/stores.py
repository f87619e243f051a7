"""The stores whose formats are promised: a new store for a test, without tables or nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.primitives import Primitive
from holdfast.url import SCHEMES, lacks_of
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper


def _mysql(**options: str) -> str:
    return mysql.server().url_of(mysql.fresh_database(), tls="no", **options)


STORES: Mapping[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite://{folder}/locks.db",
    "redis": lambda _: redis.fresh_url(),
    "redis-setnx": lambda _: redis.fresh_url(method="setnx"),
    "redis-getset": lambda _: redis.fresh_url(method="getset"),
    "redis-cluster": lambda _: redis.fresh_cluster_url(),
    "redlock": lambda _: redis.fresh_redlock_url(),
    "postgresql": lambda _: postgresql.fresh_url(),
    "postgresql-advisory": lambda _: postgresql.fresh_url(method="advisory"),
    "mysql": lambda _: _mysql(),
    "mysql-row": lambda _: _mysql(method="row"),
    "mysql-version": lambda _: _mysql(method="version"),
    "etcd": lambda _: etcd.fresh_url(),
    "etcd-key": lambda _: etcd.fresh_url(method="key"),
    "zookeeper": lambda _: zookeeper.fresh_url(),
    "zookeeper-kazoo": lambda _: zookeeper.fresh_url(layout="kazoo"),
    "memcached": lambda _: memcached.fresh_url(),
}


def has(store: str, primitive: Primitive) -> bool:
    scheme, _, method = store.partition("-")
    methods = lacks_of(SCHEMES[scheme])
    return primitive not in methods.get(method, next(iter(methods.values())))
