"""Connection pools with one bug each."""

from __future__ import annotations

from typing import Any

from holdfast.backends.net.pool import ConnectionPool
from holdfast.sim.client import SimClient
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.network import Connection, Link

SimPool = ConnectionPool[Connection]


class _WithPool(SimClient):
    """A client with a mutant pool."""

    pool_type: type[SimPool] = ConnectionPool

    def __init__(self, process: Any, server: Any, link: Link, *arguments: Any, **more: Any) -> None:
        link.use_pool(self.pool_type)
        super().__init__(process, server, link, *arguments, **more)


class _CountsWhatFailed(SimPool):
    """The exceptions that refer to them are kept by a caller, say."""

    _failed: list[Connection]

    def discard(self, wire: Connection) -> None:
        wire.close()
        self._failed = [*getattr(self, "_failed", []), wire]


class _OneForEachAttempt(SimPool):
    def get_idle(self, now: float) -> Connection | None:
        wire = super().get_idle(now)
        if wire is not None:
            wire.probe = None
        return wire

    def discard_failed(self, wire: Connection) -> None:
        self.discard(wire)


class CountsWhatFailed(_WithPool):
    pool_type = _CountsWhatFailed


class OneForEachAttempt(_WithPool):
    pool_type = _OneForEachAttempt


NET = [
    Mutant(
        name="failed-connections-count",
        mistake="A connection that failed counts as in use for as long as something refers to it.",
        client=CountsWhatFailed,
        kinds=frozenset({"vanish", "cut"}),
    ),
    Mutant(
        name="one-vanished-connection-for-each-attempt",
        mistake="Of the connections that vanished together each one is waited for by a request of its own.",
        client=OneForEachAttempt,
        kinds=frozenset({"vanish"}),
    ),
]
