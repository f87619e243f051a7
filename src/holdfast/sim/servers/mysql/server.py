"""MySQL in its world: a database as database.py has it, which nobody hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.mysql.protocol.guarantees import GUARANTEES
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend
from holdfast.backends.mysql.sql import lock_id
from holdfast.core.tickets import POLL_INTERVAL_BEHIND
from holdfast.sim.servers.base import Server
from holdfast.sim.servers.database import Database
from holdfast.sim.servers.mysql.port import SimPort
from holdfast.sim.servers.mysql.tables import Tables

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.faults import Faults
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Entry, Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World


DELETES = 0.1  # how often an operator deletes a row when old ones are removed


class MysqlServer(Database):
    """Locks by any method."""

    excluded_faults = Server.excluded_faults | {"lose_notification"}  # there are no notifications
    clock_back_max = Server.clock_back_max  # a lease that was renewed by a clock that was set back since is set right
    backend: Callable[..., Any]
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables: Tables = self.tables_type(self._clock)

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        backend: Backend = type(self).backend("sim://mysql", SimPort(self, link), runtime)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return self.tables.run(statement, values)

    def break_lock(self, name: str, fence: int) -> None:
        self.execute(lambda: self.tables.break_answer(lock_id(name), fence))

    def prepare(self, faults: Faults, ttl: float) -> None:
        super().prepare(faults, ttl)
        # A lock whose row is gone relies on the clock for its next fence.
        self._deletes = 0.0 if faults.step_clock else DELETES

    def reap(self) -> object:
        """And at times an operator deletes, by hand, the row of a lock that others share.

        Not of one that others wait for: their order is not promised then. A request whose answer is lost may have taken
        the lock before them, and is granted it when it is sent again.
        """
        waited_for = {ticket.id for ticket in self.tables.tickets if ticket.fence is None}
        idle = [key for key, lock in self.tables.locks.items() if lock.nonce is None and lock.departed is None]
        rows = [key for key in idle if key not in waited_for]
        if rows and self.world.choices.chance(self._deletes):
            del self.tables.locks[self.world.choices.pick(rows)]
        return self.tables.reap_answer(b"")

    def _found(self) -> list[tuple[str, Entry, int]]:
        """Without a holder whose row is new although the lock has tickets: it is not granted, but undone next."""
        return [one for one in super()._found() if one[0] not in self.tables.unconfirmed]

    @property
    def extra_idle_time(self) -> float:
        """Until the next poll."""
        return min(self.set_back, POLL_INTERVAL_BEHIND)

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        self.starts += 1


class VersionServer(MysqlServer):
    """Locks by `method=version`."""

    guarantees = GUARANTEES["version"]
    # Who dies is not seen. Who left is never forgotten: its version is over, unless an old one comes back.
    orphaning_faults = frozenset({"crash", "old_data"})
    kinds = ("lock",)
    backend = VersionBackend


class UniqueServer(MysqlServer):
    """Locks by `method=unique`."""

    guarantees = GUARANTEES["unique"]
    # Who dies is not seen, and who left is remembered for ten seconds, unless that is forgotten or over.
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    idle_max = 8.0  # less than a waiter's lease: one whose turn it is, and who is dead, keeps 3.5 s of it
    backend = UniqueBackend
