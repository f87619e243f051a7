"""A backend by itself, for what a test wants to ask of a store below the engine."""

from __future__ import annotations

import uuid
from typing import TypeVar

from holdfast.core.ports import Backend
from holdfast.core.tickets import Ticket
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import opener, parse

T = TypeVar("T")

__all__ = ["new_ticket", "opened", "run_sync", "soon"]


def opened(url: str) -> Backend:
    """For this thread. Whoever opens it closes it."""
    address = parse(url)
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    return backend


def soon() -> float:
    """A deadline for one request."""
    return system.now() + 20


def new_ticket(name: str, *, ttl: float = 30.0, owner: str = "") -> Ticket:
    """An exclusive one."""
    return Ticket(name, uuid.uuid4().hex, ttl, 1, exclusive=True, agent="", info="{}", owner=owner)
