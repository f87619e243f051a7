"""The PostgreSQL server in its world: a Database with notifications.

A restart ends all connections, also those with subscriptions. The sessions of a client that dies end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.postgresql.protocol.guarantees import GUARANTEES
from holdfast.backends.postgresql.protocol.polled import PolledBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend, decode_name, encode_name
from holdfast.guarantees import Order, Wake
from holdfast_lab.sim.servers.database import Database
from holdfast_lab.sim.servers.postgresql.port import SimPort
from holdfast_lab.sim.servers.postgresql.tables import REAPED_MAX, Tables
from holdfast_lab.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World


class PostgresqlServer(Database, PushServer):
    """A server for `method=queue`."""

    guarantees = GUARANTEES["queue"]._replace(order=Order.FIFO)
    keeps_order = False  # a client has several connections
    idle_max = 6.0  # less than a waiter lease: a dead waiter that is woken keeps a second of it
    backend: Callable[..., Any] = PostgresqlBackend
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables: Tables = self.tables_type(self._clock, self.publish, self._is_gone)
        self._started = self._clock()  # before any client polled
        self._is_session = True  # the present statement is executed in a session of its client

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.subscribers))
        self.subscribers.append(port)
        backend: Backend = type(self).backend("sim://postgresql", port, runtime, **self.backend_options())
        return backend

    def backend_options(self) -> dict[str, Any]:
        return {}

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """A statement of one client."""
        self.tables.caller = port.channel
        self._is_session = not port.is_pooled
        return self.tables.run(statement, values)

    def _is_gone(self, channel: str, renewed: int | None) -> bool:
        """Whether a client has died. After a restart, which ends all sessions, only if it has polled since.

        A client behind a pooler has no sessions: it does not know whether others have died, nor the others about it.
        """
        if not self._is_session or renewed is None or renewed <= self._started:
            return False
        ports = [port for port in self.subscribers if isinstance(port, SimPort) and port.channel == channel]
        return all(port.link.process.is_dead and not port.is_pooled for port in ports)

    def restart(self) -> None:
        super().restart()
        self._started = self._clock()

    def break_lock(self, name: str, fence: int) -> None:
        self.tables.caller, self._is_session = None, True
        self.execute(lambda: self.tables.break_(encode_name(name), fence))

    def reap_tables(self) -> object:
        now, tables = self._clock(), self.tables
        return tables.reap(now), tables.reap_registers(now), tables.reap_expired_records(REAPED_MAX)

    def decode_name(self, name: str) -> str:
        return decode_name(name)

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step, self.subscription_state()


class LocalHandoverServer(PostgresqlServer):
    """The same with `local_handover=yes`."""

    guarantees = GUARANTEES["queue"]

    def backend_options(self) -> dict[str, Any]:
        return {"local_handover": True}


class PooledServer(PostgresqlServer):
    """A server with a pooler in transaction mode. Every second client goes through it; the others are connected."""

    guarantees = GUARANTEES["queue"]._replace(order=Order.FIFO, wake=Wake.POLL)
    pooled_backend: Callable[..., Any] = PolledBackend

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.subscribers))
        port.is_pooled = len(self.subscribers) % 2 == 0
        self.subscribers.append(port)
        kind = type(self).pooled_backend if port.is_pooled else type(self).backend
        backend: Backend = kind("sim://postgresql", port, runtime)
        return backend
