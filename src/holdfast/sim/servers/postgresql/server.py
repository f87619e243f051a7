"""PostgreSQL in its world: a database as database.py has it, which clients listen to.

A restart ends all connections: who listened does not any more. A client that dies is gone at once: so are its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend, decode_name, encode_name
from holdfast.core.tickets import POLL_INTERVAL_BEHIND
from holdfast.sim.servers.base import Server
from holdfast.sim.servers.database import Database
from holdfast.sim.servers.postgresql.port import SimPort
from holdfast.sim.servers.postgresql.tables import Tables
from holdfast.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.faults import Faults
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World


DELETES = 0.1  # how often an operator deletes a row when old ones are removed


class PostgresqlServer(Database, PushServer):
    """Locks by `method=queue`."""

    guarantees = GUARANTEES["queue"]
    # As for Redis: who dies is not seen, and who left is remembered for ten seconds, unless that is forgotten or over.
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    keeps_order = False  # a client has several connections
    idle_max = 6.0  # less than a waiter's lease: one that is woken, and dead, keeps a second of it
    clock_back_max = Server.clock_back_max  # a lease that meets a clock that was set back is set right
    backend: Callable[..., Any] = PostgresqlBackend
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables: Tables = self.tables_type(self._clock, self.publish, self._is_gone)
        self._started = self._clock()  # before any client polled

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.subscribers))
        self.subscribers.append(port)
        backend: Backend = type(self).backend("sim://postgresql", port, runtime)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """As one client asks it."""
        self.tables.caller = port.channel
        return self.tables.run(statement, values)

    def _is_gone(self, channel: str, renewed: int | None) -> bool:
        """After a restart, whose every session is new, only of clients that have polled since."""
        ports = [port for port in self.subscribers if isinstance(port, SimPort) and port.channel == channel]
        return renewed is not None and renewed > self._started and all(port.link.process.is_dead for port in ports)

    def restart(self) -> None:
        super().restart()
        self._started = self._clock()

    @property
    def extra_idle_time(self) -> float:
        """Until the next poll."""
        return min(self.set_back, POLL_INTERVAL_BEHIND)

    def break_lock(self, name: str, fence: int) -> None:
        self.tables.caller = None
        self.execute(lambda: self.tables.break_(encode_name(name), fence))

    def prepare(self, faults: Faults, ttl: float) -> None:
        super().prepare(faults, ttl)
        self._deletes = (
            0.0 if faults.step_clock else DELETES
        )  # without its row a lock relies on the clock for its fence

    def reap(self) -> object:
        """And at times an operator deletes, by hand, the row of a lock that others share or wait for."""
        rows = [lock.name for lock in self.tables.locks.values() if lock.nonce is None and lock.departed is None]
        if rows and self.world.choices.chance(self._deletes):
            del self.tables.locks[self.world.choices.pick(rows)]
        return self.tables.reap(self._clock()), self.tables.reap_registers(self._clock())

    def decode_name(self, name: str) -> str:
        return decode_name(name)

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step, self.subscription_state()
