"""The backends that the conformance suite runs on. A new backend needs one entry here."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast_lab.conformance.cases import Case
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.nats import shared as nats
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper

_MEMORY = Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.PROCESS)
_SQLITE = Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.MACHINE)
_SQL = _SQLITE._replace(scope=Scope.NETWORK)
_REDIS = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.NETWORK)
_PLAIN = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)
_CACHE = _PLAIN._replace(exclusion=Exclusion.CACHE)
_CONSENSUS = Guarantees(Exclusion.CONSENSUS, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.NETWORK)
_ZOOKEEPER = _CONSENSUS._replace(fence=FenceOrder.DURABLE_STORAGE)
_NATS = _ZOOKEEPER._replace(order=Order.NONE)


def _plain(name: str, fresh_url: Callable[[], str], claims: Guarantees, *, shows_who: bool = True) -> Case:
    return Case(name, lambda _: fresh_url(), claims, shares=False, shows_waiters=False, shows_who=shows_who)


def _local(name: str, url: Callable[[], str], claims: Guarantees) -> Case:
    """With local hand-over: a caller that waits for another caller of its client has no ticket on the server."""
    return Case(name, lambda _: url(), claims._replace(order=Order.TURNS))


def _strict(name: str, url: Callable[..., str], claims: Guarantees) -> Case:
    """Each caller has a ticket on the server."""
    return Case(f"{name}-strict", lambda _: url(local_handover="no"), claims)


# All suites run on these.
BACKENDS = [
    Case("memory", lambda _: f"memory://{uuid.uuid4().hex}", _MEMORY),
    Case("sqlite", lambda folder: f"sqlite://{folder}/locks.db", _SQLITE),
    _local("redis", redis.restricted_url, _REDIS),
    _local("postgresql", postgresql.restricted_url, _SQL),
    _local("mysql", mysql.restricted_url, _SQL._replace(wake=Wake.POLL)),
    Case("etcd", lambda _: etcd.restricted_url(), _CONSENSUS),
    Case("zookeeper", lambda _: zookeeper.restricted_url(), _ZOOKEEPER),
]


# Only our own suite runs on these: backends that lack primitives, and other topologies and methods of the ones above.
_WITH_FEWER_PRIMITIVES = [
    Case("redlock", lambda _: redis.restricted_redlock_url(), _REDIS._replace(order=Order.NONE), shares=False),
    _plain("nats", nats.fresh_url, _NATS._replace(exclusion=Exclusion.BEST_EFFORT)),
    _plain("memcached", memcached.fresh_url, _CACHE),
]
_OTHER_METHODS = [
    case._replace(is_variant=True)
    for case in (
        _strict("redis", redis.restricted_url, _REDIS),
        _strict("postgresql", postgresql.restricted_url, _SQL),
        _strict("mysql", mysql.restricted_url, _SQL._replace(wake=Wake.POLL)),
        _local("redis-cluster", redis.restricted_cluster_url, _REDIS),
        Case("zookeeper-kazoo", lambda _: zookeeper.restricted_url(layout="kazoo"), _ZOOKEEPER),
        _plain("redis-setnx", lambda: redis.restricted_url(method="setnx"), _PLAIN, shows_who=False),
        _plain("redis-getset", lambda: redis.restricted_url(method="getset"), _PLAIN, shows_who=False),
        _local("postgresql-pooler", postgresql.fresh_pooled_url, _SQL._replace(wake=Wake.POLL)),
        _plain(
            "postgresql-advisory",
            lambda: postgresql.restricted_url(method="advisory"),
            _SQL._replace(order=Order.STORE),
        ),
        _plain("mysql-row", lambda: mysql.restricted_url(method="row"), _SQL._replace(order=Order.STORE)),
        _plain(
            "mysql-version",
            lambda: mysql.restricted_url(method="version"),
            _SQL._replace(order=Order.NONE, wake=Wake.POLL),
        ),
        _plain("etcd-key", lambda: etcd.restricted_url(method="key"), _CONSENSUS._replace(order=Order.NONE)),
        _plain("nats-cluster", nats.fresh_cluster_url, _NATS),
    )
]
_WITH_BOTH_RUNTIMES = ("memory", "sqlite", "redis")
CASES = [
    *(case._replace(one_runtime=case.name not in _WITH_BOTH_RUNTIMES) for case in (*BACKENDS, *_WITH_FEWER_PRIMITIVES)),
    *_OTHER_METHODS,
]
