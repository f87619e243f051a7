"""The page `store`: the guarantees, warnings and primitives of the store, and the cost of the dashboard."""

from __future__ import annotations

from enum import Enum
from typing import Any

from holdfast import __version__
from holdfast.dashboard.states import State
from holdfast.guarantees import FROM_WEAK_TO_STRONG, Exclusion, FenceOrder, Order, Scope, Wake
from holdfast.primitives import Primitive
from holdfast.threads.client import Client

MEANINGS: dict[Enum, str] = {
    Exclusion.CONSENSUS: "At most one holder, also if a minority of the servers fails.",
    Exclusion.DURABLE_AUTHORITY: "At most one holder: one store decides, and it does not lose what it has answered.",
    Exclusion.BEST_EFFORT: "After a failover or a restart two clients can hold the lock. Check fences.",
    Exclusion.CACHE: "The store may drop a lock at any time. Check fences.",
    FenceOrder.UNCONDITIONAL: "Fences always grow; only an operator who restores an old copy can break that.",
    FenceOrder.DURABLE_STORAGE: "Fences grow while the data of the store are kept.",
    FenceOrder.CLOCK_BOUNDED: "Fences grow while the data are kept, or while the clock of the server is not set back.",
    FenceOrder.BEST_EFFORT: "Fences usually grow. A resource must not rely on it.",
    Order.FIFO: "Waiters acquire the lock in the order in which they queued.",
    Order.TURNS: "Clients get the lock in the order in which they queued, and pass it on between their own waiters.",
    Order.STORE: "The store decides which waiter is next.",
    Order.NONE: "Any waiter can be next.",
    Wake.PUSH: "The store notifies the next waiter of a release.",
    Wake.POLL: "Waiters poll, so a hand-over takes up to the poll interval.",
    Scope.PROCESS: "Only the threads and tasks of one process exclude each other.",
    Scope.MACHINE: "The processes of one user on one machine exclude each other.",
    Scope.NETWORK: "All clients that reach the store exclude each other.",
}
_TITLES = {
    "exclusion": "Exclusion",
    "fence": "Fences",
    "order": "Order of waiters",
    "wake": "Wake-up",
    "scope": "Scope",
}


def store_document(client: Client, state: State | None, interval: float, pages: int) -> dict[str, Any]:
    """The JSON object. `interval` is the time between two polls, `pages` the number of open pages."""
    lacks = client._engine.backend.lacks  # noqa: SLF001 - not public; `holdfast backends` prints it
    return {
        "url": client.url,
        "warnings": list(client.warnings),
        "guarantees": [
            {
                "title": _TITLES[field],
                "value": value.value,
                "meaning": MEANINGS[value],
                "strength": FROM_WEAK_TO_STRONG[field].index(value),
                "strengths": len(FROM_WEAK_TO_STRONG[field]),
            }
            for field, value in zip(client.guarantees._fields, client.guarantees, strict=True)
        ],
        "primitives": [{"name": primitive.value, "missing": lacks.get(primitive)} for primitive in Primitive],
        "version": __version__,
        "interval": interval,
        "poll_seconds": state.poll_seconds if state else None,
        "pages": pages,
    }
