"""PostgreSQL in its world: a database as database.py has it, which clients listen to.

A restart ends all connections: who listened does not any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.postgresql.protocol import GUARANTEES, PostgresqlBackend, plain, stored
from holdfast.sim.servers.database import Database
from holdfast.sim.servers.postgresql.port import SimPort
from holdfast.sim.servers.postgresql.tables import Tables
from holdfast.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World


class PostgresqlServer(Database, PushServer):
    """Locks by `method=queue`."""

    guarantees = GUARANTEES["queue"]
    # As for Redis: who dies is not seen, and who left is remembered for ten seconds, unless that is forgotten or over.
    lapses_after = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    keeps_order = False  # a client has several connections
    cannot = frozenset({"duplicate"})  # TCP delivers once, and nobody sends again what was sent
    idle_max = 6.0  # less than a waiter's lease: one that is woken, and dead, keeps a second of it
    backend: Callable[..., Any] = PostgresqlBackend
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables: Tables = self.tables_type(self._clock, self.publish)

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.listeners))
        self.listeners.append(port)
        backend: Backend = type(self).backend("sim://postgresql", port, runtime)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """As one client asks it."""
        return self.tables.run(statement, values)

    def break_lock(self, name: str, fence: int) -> None:
        self.execute(lambda: self.tables.break_(stored(name), fence))

    def reap(self) -> object:
        return self.tables.reap(self._clock()), self.tables.reap_marks(self._clock())

    def plain(self, name: str) -> str:
        return plain(name)

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step, self.subscribed()
