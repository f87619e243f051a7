"""The backends that the conformance suite runs on. A new one joins with one entry here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from tests.support.mysql import shared as mysql
from tests.support.postgresql import shared as postgresql
from tests.support.redis import shared as redis

_REDIS = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.PUSH, Scope.NETWORK)
_REDLOCK = Guarantees(Exclusion.BEST_EFFORT, FenceOrder.CLOCK_BOUNDED, Order.NONE, Wake.PUSH, Scope.NETWORK)
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
        "mysql",
        lambda _: mysql.fresh_url(),
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.FIFO, Wake.POLL, Scope.NETWORK),
    ),
]

# Other shapes and methods of these: in our own suite, as far as they go.
CASES = [
    *BACKENDS,
    Case("redis-cluster", lambda _: redis.fresh_cluster_url(), _REDIS),
    Case("redlock", lambda _: redis.fresh_redlock_url(), _REDLOCK, shares=False),
    Case("redis-setnx", lambda _: redis.fresh_url(method="setnx"), _PLAIN, shares=False, shows_waiters=False),
    Case("redis-getset", lambda _: redis.fresh_url(method="getset"), _PLAIN, shares=False, shows_waiters=False),
    Case(
        "mysql-row",
        lambda _: mysql.fresh_url(method="row"),
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.STORE, Wake.PUSH, Scope.NETWORK),
        shares=False,
        shows_waiters=False,
    ),
    Case(
        "mysql-version",
        lambda _: mysql.fresh_url(method="version"),
        Guarantees(Exclusion.DURABLE_AUTHORITY, FenceOrder.CLOCK_BOUNDED, Order.NONE, Wake.POLL, Scope.NETWORK),
        shares=False,
        shows_waiters=False,
    ),
]
