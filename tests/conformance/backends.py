"""The backends that the conformance suite runs on. A new one joins with one entry here."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake


class Case(NamedTuple):
    """A backend under test: how to get a fresh store, and what it claims, which the suite holds it to."""

    name: str
    fresh_url: Callable[[Path], str]
    claims: Guarantees


CASES = [
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
]
