"""The MySQL server in its world: a Database without notifications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.mysql.protocol.guarantees import GUARANTEES
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend
from holdfast.backends.mysql.sql import REAP_ROWS, lock_id
from holdfast.guarantees import Order
from holdfast_lab.sim.servers.database import Database
from holdfast_lab.sim.servers.mysql.port import SimPort
from holdfast_lab.sim.servers.mysql.tables import Tables

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.recorder import Entry, Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World


class MysqlServer(Database):
    """A server for any method."""

    backend: Callable[..., Any]
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables: Tables = self.tables_type(self._clock)

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        backend: Backend = type(self).backend("sim://mysql", SimPort(self, link), runtime, **self.backend_options())
        return backend

    def backend_options(self) -> dict[str, Any]:
        return {}

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return self.tables.run(statement, values)

    def break_lock(self, name: str, fence: int) -> None:
        self.execute(lambda: self.tables.break_answer(lock_id(name), fence))

    def deletable(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """No lock with waiters: their order is not guaranteed then.

        A request whose answer is lost may have acquired the lock before them, and is granted it when it is repeated.
        """
        with_waiters = {ticket.id for ticket in self.tables.tickets if ticket.fence is None}
        return [key for key in keys if key not in with_waiters]

    def reap_tables(self) -> object:
        return self.tables.reap_answer(b""), self.tables.reap_records_answer(REAP_ROWS)

    def _entries(self) -> list[tuple[str, Entry, int]]:
        """Without a holder whose row is new although the lock has tickets: its grant is undone when it is confirmed."""
        return [entry for entry in super()._entries() if entry[0] not in self.tables.unconfirmed]

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        self.starts += 1


class VersionServer(MysqlServer):
    """A server for `method=version`."""

    guarantees = GUARANTEES["version"]
    # The server does not notice that a client dies. A request that arrives after its release fails, because its version
    # is not current any more, unless old data are restored.
    orphaning_faults = frozenset({"crash", "old_data"})
    kinds = ("lock",)
    backend = VersionBackend


class UniqueServer(MysqlServer):
    """A server for `method=unique`."""

    guarantees = GUARANTEES["unique"]._replace(order=Order.FIFO)
    idle_max = 8.0  # less than a waiter lease: a dead waiter whose turn it is keeps 3.5 s of it
    backend = UniqueBackend


class LocalHandoverServer(UniqueServer):
    """The same with `local_handover=yes`."""

    guarantees = GUARANTEES["unique"]

    def backend_options(self) -> dict[str, Any]:
        return {"local_handover": True}
