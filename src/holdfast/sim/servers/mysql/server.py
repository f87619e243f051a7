"""MySQL in its world: its clock, its reaper, and what becomes of requests when it goes down.

Leases end by the server's wall clock, which can be set: forward, and they end early; back, and they end late. What was
committed is on disk: a restart or a crash loses nothing, but what was on its way then is not done. A replica that takes
over has the data of some time ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.mysql.protocol import GUARANTEES, UniqueBackend, lock_id, us
from holdfast.backends.mysql.version import VersionBackend
from holdfast.core.tickets import WAITER_LEASE
from holdfast.sim.recorder import Entry
from holdfast.sim.servers.base import Server
from holdfast.sim.servers.mysql.port import SimPort
from holdfast.sim.servers.mysql.tables import Snapshot, Tables, Ticket

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.faults import Faults
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")

CLOCKS_APART = 0.05  # seconds by which a replica's clock may be ahead of its primary's
REAPED_EVERY = 2.0  # seconds: somebody makes a new lock elsewhere in the database, and old ones are removed
# Seconds after which an unused lock is old here: not an hour, of which a world has none, but more than any memory of
# those who left needs.
IDLE = WAITER_LEASE + 2.0


class MysqlServer(Server):
    """Locks by any method."""

    # TCP delivers once, and nobody sends again what was sent; and nobody hears anything.
    cannot = frozenset({"duplicate", "drop", "lose_ring"})
    # A lease ends by the clock that is set back here. With an hour nobody would see its end.
    back_max = 10.0
    backend: Callable[..., Any]
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.starts = 1
        self.tables = self.tables_type(self._clock)
        self._places: dict[str, int] = {}  # by nonce
        self._copy: Snapshot | None = None

    def prepare(self, faults: Faults, ttl: float) -> None:
        # A lock that was removed relies on the clock for its next fence: no world sets it back by an hour.
        if not faults.step_clock:
            self.tables.fence_idle = us(IDLE)
        self.world.at(REAPED_EVERY, self._reap)

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        backend: Backend = type(self).backend("sim://mysql", SimPort(self, link), runtime)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def execute(self, step: Callable[[], T]) -> T:
        try:
            return step()
        finally:
            self.recorder.look(self.tickets())

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return self.tables.run(statement, values)

    def break_lock(self, name: str, fence: int) -> None:
        self.execute(lambda: self.tables.break_answer(lock_id(name), fence))

    def _reap(self) -> None:
        self.world.at(self.world.now + REAPED_EVERY, self._reap)
        if not self.is_stalled:
            self.execute(lambda: self.tables.reap_answer(b""))

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        return {nonce: entry for nonce, entry, _ in self._found()}

    def live(self) -> dict[str, Entry]:
        now = self._clock()
        return {nonce: entry for nonce, entry, expires in self._found() if expires > now}

    def _found(self) -> list[tuple[str, Entry, int]]:
        """Every ticket, first who is in: its nonce, what it is, and when it runs out."""
        found = []
        places = {}
        for lock in self.tables.locks.values():
            if lock.nonce is not None:
                # An exclusive holder has no place in line any more. The one that it had stays its own, also if it is
                # let in once more, with a new fence, because nobody heard of the first time.
                place = places[lock.nonce] = self._places.get(lock.nonce, lock.fence)
                entry = Entry(lock.name, place, lock.fence, 1, exclusive=True)
                found.append((lock.nonce, entry, lock.expires))
        for one in sorted(self.tables.tickets, key=_waits):
            places[one.nonce] = one.number
            entry = Entry(one.name, one.number, one.fence, one.limit, one.exclusive)
            found.append((one.nonce, entry, one.expires))
        self._places = places
        return found

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        self.starts += 1

    def lose_data(self) -> None:
        """The tables are dropped, and made anew by whoever asks next."""
        self.tables.restore(({}, [], {}))
        self.restart()
        self.recorder.look(self.tickets())

    def back_up(self) -> None:
        self._copy = self.tables.snapshot()

    def restore_data(self) -> None:
        """A failover to a replica that lags behind. It takes longer than clocks are apart: time does not go back."""
        if self._copy is None:
            return
        self.tables.restore(self._copy)
        self.step_clock(self.world.choices.between(0.0, CLOCKS_APART))
        self.restart()
        self.recorder.look(self.tickets())

    @property
    def prolonged(self) -> float:
        return self.set_back

    def _clock(self) -> int:
        return round(self.wall() * 1_000_000)


class VersionServer(MysqlServer):
    """Locks by `method=version`."""

    guarantees = GUARANTEES["version"]
    # Who dies is not seen. Who left is never forgotten: its version is over, unless an old one comes back.
    lapses_after = frozenset({"crash", "old_data"})
    kinds = ("lock",)
    backend = VersionBackend


class UniqueServer(MysqlServer):
    """Locks by `method=unique`."""

    guarantees = GUARANTEES["unique"]
    # Who dies is not seen, and who left is remembered for ten seconds, unless that is forgotten or over.
    lapses_after = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    idle_max = 8.0  # less than a waiter's lease: one whose turn it is, and who is dead, keeps 3.5 s of it
    backend = UniqueBackend


def _waits(ticket: Ticket) -> bool:
    return ticket.fence is None
