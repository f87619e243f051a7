"""PostgreSQL in its world: its clock, its reaper, and what becomes of clients when it goes down.

Leases end by the server's wall clock, which can be set: forward, and they end early; back, and they end late. What was
committed is on disk: a restart or a crash loses nothing, but it ends all connections. What was on its way then is not
done, and who listened does not any more. A standby that takes over has the data of some time ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.postgresql.protocol import GUARANTEES, PostgresqlBackend, plain, stored, us
from holdfast.core.tickets import WAITER_LEASE
from holdfast.sim.recorder import Entry
from holdfast.sim.servers.postgresql.port import SimPort
from holdfast.sim.servers.postgresql.tables import Snapshot, Tables, Ticket
from holdfast.sim.servers.subscriptions import PushServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.sim.faults import Faults
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")

CLOCKS_APART = 0.05  # seconds by which a standby's clock may be ahead of its primary's
REAPED_EVERY = 2.0  # seconds: somebody makes a new lock elsewhere in the database, and old ones are removed
# Seconds after which an unused lock is old here: not an hour, of which a world has none, but more than any memory of
# those who left needs.
IDLE = WAITER_LEASE + 2.0


class PostgresqlServer(PushServer):
    """Locks by `method=queue`."""

    guarantees = GUARANTEES["queue"]
    # As for Redis: who dies is not seen, and who left is remembered for ten seconds, unless that is forgotten or over.
    lapses_after = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})
    keeps_order = False  # a client has several connections
    cannot = frozenset({"duplicate"})  # TCP delivers once, and nobody sends again what was sent
    idle_max = 6.0  # less than a waiter's lease: one that is woken, and dead, keeps a second of it
    # A lease ends by the clock that is set back here. With an hour nobody would see its end.
    back_max = 10.0
    backend: Callable[..., Any] = PostgresqlBackend
    tables_type: ClassVar[type[Tables]] = Tables

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.tables = self.tables_type(self._clock, self.publish)
        self._places: dict[str, int] = {}  # by nonce
        self._copy: Snapshot | None = None

    def prepare(self, faults: Faults, ttl: float) -> None:
        # A lock that was removed relies on the clock for its next fence: no world sets it back by an hour.
        if not faults.step_clock:
            self.tables.fence_idle = us(IDLE)
        self.world.at(REAPED_EVERY, self._reap)

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime, len(self.listeners))
        self.listeners.append(port)
        backend: Backend = type(self).backend("sim://postgresql", port, runtime)
        return backend

    # ── what clients ask for ─────────────────────────────────────────────────────────────────────────────────────

    def execute(self, step: Callable[[], T]) -> T:
        try:
            return step()
        finally:
            self.recorder.look(self.tickets())

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        """As one client asks it."""
        return self.tables.run(statement, values)

    def break_lock(self, name: str, fence: int) -> None:
        self.execute(lambda: self.tables.break_(stored(name), fence))

    def _reap(self) -> None:
        self.world.at(self.world.now + REAPED_EVERY, self._reap)
        if not self.is_stalled:
            self.execute(lambda: (self.tables.reap(self._clock()), self.tables.reap_marks(self._clock())))

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
            if lock.nonce is not None and lock.fence is not None:
                # An exclusive holder has no place in line any more. The one that it had stays its own, also if it is
                # let in once more, with a new fence, because nobody heard of the first time.
                place = places[lock.nonce] = self._places.get(lock.nonce, lock.fence)
                entry = Entry(plain(lock.name), place, lock.fence, 1, exclusive=True)
                found.append((lock.nonce, entry, lock.expires or 0))
        for one in sorted(self.tables.tickets, key=_waits):
            places[one.nonce] = one.number
            entry = Entry(plain(one.name), one.number, one.fence, one.limit, one.exclusive)
            found.append((one.nonce, entry, one.expires))
        self._places = places
        return found

    def state(self) -> object:
        return self.tables.snapshot(), self.starts, self.wall_step, self.subscribed()

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def lose_data(self) -> None:
        """The tables are dropped, and made anew by whoever asks next."""
        self.tables.restore(({}, [], {}))
        self.restart()
        self.recorder.look(self.tickets())

    def back_up(self) -> None:
        self._copy = self.tables.snapshot()

    def restore_data(self) -> None:
        """A failover to a standby that lags behind. It takes longer than clocks are apart: time does not go back."""
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


def _waits(ticket: Ticket) -> bool:
    return ticket.fence is None
