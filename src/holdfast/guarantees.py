"""The guarantees of a backend, as data: a program can require them, and tables are made from them."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple, TypedDict


class Exclusion(Enum):
    """The faults under which at most one client at a time believes that it holds the lock."""

    CONSENSUS = "consensus"  # survives the failure of any minority of servers
    DURABLE_AUTHORITY = "durable-authority"  # one store that does not lose what it has answered
    BEST_EFFORT = "best-effort"  # a failover or restart can lose a holder
    CACHE = "cache"  # the store may drop a lock at any time


class FenceOrder(Enum):
    """The condition under which fences grow."""

    UNCONDITIONAL = "unconditional"  # no fault makes them decrease, only an operator who restores an old copy
    DURABLE_STORAGE = "durable-storage"  # the data of the store are kept
    CLOCK_BOUNDED = "clock-bounded"  # the data of the store are kept, or its wall clock is not set back
    BEST_EFFORT = "best-effort"


class Order(Enum):
    """The order in which waiters acquire the lock."""

    FIFO = "FIFO"
    TURNS = "by turns"  # FIFO between clients; in its turn, a client may serve its callers that waited when it began
    STORE = "store's"
    NONE = "none"


class Wake(Enum):
    """How a waiter learns that the lock is free."""

    PUSH = "push"
    POLL = "poll"


class Scope(Enum):
    """The programs that exclude each other."""

    PROCESS = "process"
    MACHINE = "machine+user"
    NETWORK = "network"


class Guarantees(NamedTuple):
    """The guarantees of one backend in one configuration.

    >>> import holdfast
    >>> holdfast.Client("memory://").guarantees.order.value
    'FIFO'
    """

    exclusion: Exclusion
    fence: FenceOrder
    order: Order
    wake: Wake
    scope: Scope

    def as_dict(self) -> dict[str, str]:
        """The guarantees as strings, for tables and JSON."""
        return {field: value.value for field, value in zip(self._fields, self, strict=True)}


class Requirements(TypedDict, total=False):
    """The guarantees that a program requires of its store, as enum members or their values; all are optional."""

    exclusion: Exclusion | Literal["cache", "best-effort", "durable-authority", "consensus"]
    fence: FenceOrder | Literal["best-effort", "clock-bounded", "durable-storage", "unconditional"]
    order: Order | Literal["none", "store's", "by turns", "FIFO"]
    wake: Wake | Literal["poll", "push"]
    scope: Scope | Literal["process", "machine+user", "network"]


# Each guarantee includes those before it.
FROM_WEAK_TO_STRONG: dict[str, tuple[Enum, ...]] = {
    "exclusion": (Exclusion.CACHE, Exclusion.BEST_EFFORT, Exclusion.DURABLE_AUTHORITY, Exclusion.CONSENSUS),
    "fence": (
        FenceOrder.BEST_EFFORT,
        FenceOrder.CLOCK_BOUNDED,
        FenceOrder.DURABLE_STORAGE,
        FenceOrder.UNCONDITIONAL,
    ),
    "order": (Order.NONE, Order.STORE, Order.TURNS, Order.FIFO),
    "wake": (Wake.POLL, Wake.PUSH),
    "scope": (Scope.PROCESS, Scope.MACHINE, Scope.NETWORK),
}
