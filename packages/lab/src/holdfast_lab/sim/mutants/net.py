"""Connection pools with one bug each."""

from __future__ import annotations

from typing import Any

from holdfast.backends.net.pool import ConnectionPool
from holdfast_lab.sim.client import SimClient
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.network import Connection, Link

SimPool = ConnectionPool[Connection]


class _WithPool(SimClient):
    """A client with a mutant pool."""

    pool_type: type[SimPool] = ConnectionPool

    def __init__(self, process: Any, server: Any, link: Link, *arguments: Any, **more: Any) -> None:
        link.use_pool(self.pool_type)
        super().__init__(process, server, link, *arguments, **more)


class _FailedConnectionsCount(SimPool):
    """Failed connections stay referenced, as if a caller kept the exceptions that refer to them."""

    _failed: list[Connection]

    def discard(self, connection: Connection) -> None:
        connection.close()
        self._failed = [*getattr(self, "_failed", []), connection]


class _OneForEachAttempt(SimPool):
    def get_idle(self, now: float) -> Connection | None:
        connection = super().get_idle(now)
        if connection is not None:
            connection.probe = None
        return connection

    def discard_failed(self, connection: Connection) -> None:
        self.discard(connection)


class FailedConnectionsCount(_WithPool):
    pool_type = _FailedConnectionsCount


class OneForEachAttempt(_WithPool):
    pool_type = _OneForEachAttempt


NET = [
    Mutant(
        name="failed-connections-count",
        mistake="a connection that failed counts as in use for as long as something refers to it",
        client=FailedConnectionsCount,
        kinds=frozenset({"vanish", "cut"}),
    ),
    Mutant(
        name="one-vanished-connection-for-each-attempt",
        mistake="connections that vanished together each time out in a separate request",
        client=OneForEachAttempt,
        kinds=frozenset({"vanish"}),
    ),
]
