"""The backends that the conformance suite runs on. A new one joins with one entry here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper

_REDIS = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.NETWORK)
_REDLOCK = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.CLOCK_BOUNDED, Order.NONE, Wake.PUSH, Scope.NETWORK)
_CACHE = Guarantees(Exclusion.CACHE, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)
_ZOOKEEPER = Guarantees(Exclusion.CONSENSUS, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.NETWORK)
_PLAIN = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.BEST_EFFORT, Order.NONE, Wake.POLL, Scope.NETWORK)


class Case(NamedTuple):
    """A backend under test: how to get a fresh store, and what it claims, which the suite holds it to."""

    name: str
    fresh_url: Callable[[Path], str]
    claims: Guarantees
    shares: bool = True  # it has readers and semaphores too
    shows_waiters: bool = True  # the store knows who waits


# Each in all suites.
BACKENDS = [
    Case(
        "memory",
        lambda _: f"memory://{uuid.uuid4().hex}",
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.PROCESS),
    ),
    Case(
        "sqlite",
        lambda folder: f"sqlite://{folder}/locks.db",
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.MACHINE),
    ),
    Case("redis", lambda _: redis.fresh_url(), _REDIS),
    Case(
        "postgresql",
        lambda _: postgresql.fresh_url(),
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.NETWORK),
    ),
    Case(
        "etcd",
        lambda _: etcd.fresh_url(),
        Guarantees(Exclusion.CONSENSUS, FenceOrder.UNCONDITIONAL, Order.FIFO, Wake.PUSH, Scope.NETWORK),
    ),
    Case("zookeeper", lambda _: zookeeper.fresh_url(), _ZOOKEEPER),
]

# Other shapes and methods of these: in our own suite, as far as they go.
CASES = [
    *BACKENDS,
    Case("redis-cluster", lambda _: redis.fresh_cluster_url(), _REDIS),
    Case("redlock", lambda _: redis.fresh_redlock_url(), _REDLOCK, shares=False),
    Case(
        "postgresql-advisory",
        lambda _: postgresql.fresh_url(method="advisory"),
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.STORE, Wake.PUSH, Scope.NETWORK),
        shares=False,
        shows_waiters=False,
    ),
    Case("zookeeper-kazoo", lambda _: zookeeper.fresh_url(layout="kazoo"), _ZOOKEEPER),
    Case("redis-setnx", lambda _: redis.fresh_url(method="setnx"), _PLAIN, shares=False, shows_waiters=False),
    Case(
        "etcd-key",
        lambda _: etcd.fresh_url(method="key"),
        Guarantees(Exclusion.CONSENSUS, FenceOrder.UNCONDITIONAL, Order.NONE, Wake.PUSH, Scope.NETWORK),
        shares=False,
        shows_waiters=False,
    ),
    Case("redis-getset", lambda _: redis.fresh_url(method="getset"), _PLAIN, shares=False, shows_waiters=False),
    Case("memcached", lambda _: memcached.fresh_url(), _CACHE, shares=False, shows_waiters=False),
]
