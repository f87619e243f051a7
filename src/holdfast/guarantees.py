"""What a backend promises, as data: a program can require it, a table can show it, `verify` can test it."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple, TypedDict


class Exclusion(Enum):
    """How far "no two holders believe at the same time" reaches."""

    CONSENSUS = "consensus"  # survives any minority of servers failing
    DURABLE_AUTHORITY = "durable-authority"  # one store that does not forget what it answered
    BEST_EFFORT = "best-effort"  # a failover or restart can forget a holder
    CACHE = "cache"  # the store may drop a lock whenever it likes


class FenceOrder(Enum):
    """What fences need in order to keep growing."""

    UNCONDITIONAL = "unconditional"  # no fault makes them go back; an operator who restores an old copy can
    DURABLE_STORAGE = "durable-storage"  # the store's data
    CLOCK_BOUNDED = "clock-bounded"  # the store's data, or else a wall clock that did not go back
    BEST_EFFORT = "best-effort"


class Order(Enum):
    """Who is served next."""

    FIFO = "FIFO"
    STORE = "store's"
    NONE = "none"


class Wake(Enum):
    """How a waiter learns that it is its turn."""

    PUSH = "push"
    POLL = "poll"


class Scope(Enum):
    """Who is excluded at all."""

    PROCESS = "process"
    MACHINE = "machine+user"
    NETWORK = "network"


class Guarantees(NamedTuple):
    """The promises of one backend in one configuration.

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
        """The same as plain words, for tables and JSON."""
        return {field: value.value for field, value in zip(self._fields, self, strict=True)}


class Requirements(TypedDict, total=False):
    """What a program asks of its store, as enum members or as their words; what it leaves out may be anything."""

    exclusion: Exclusion | Literal["cache", "best-effort", "durable-authority", "consensus"]
    fence: FenceOrder | Literal["best-effort", "clock-bounded", "durable-storage", "unconditional"]
    order: Order | Literal["none", "store's", "FIFO"]
    wake: Wake | Literal["poll", "push"]
    scope: Scope | Literal["process", "machine+user", "network"]


# Each promise includes those before it.
FROM_WEAK_TO_STRONG: dict[str, tuple[Enum, ...]] = {
    "exclusion": (Exclusion.CACHE, Exclusion.BEST_EFFORT, Exclusion.DURABLE_AUTHORITY, Exclusion.CONSENSUS),
    "fence": (
        FenceOrder.BEST_EFFORT,
        FenceOrder.CLOCK_BOUNDED,
        FenceOrder.DURABLE_STORAGE,
        FenceOrder.UNCONDITIONAL,
    ),
    "order": (Order.NONE, Order.STORE, Order.FIFO),
    "wake": (Wake.POLL, Wake.PUSH),
    "scope": (Scope.PROCESS, Scope.MACHINE, Scope.NETWORK),
}
