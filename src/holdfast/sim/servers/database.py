"""A database in its world, which MySQL and PostgreSQL have in common: its clock, its reaper, its replicas.

Leases end by the server's wall clock, which can be set: forward, and they end early; back, and they end late. What was
committed is on disk: a restart or a crash loses nothing, but what was on its way then is not done. A replica that takes
over has the data of some time ago.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from holdfast.core.tickets import WAITER_LEASE
from holdfast.sim.recorder import Entry
from holdfast.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast.sim.faults import Faults
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.world import World

CLOCKS_APART = 0.05  # seconds by which a replica's clock may be ahead of its primary's
REAPED_EVERY = 2.0  # seconds: somebody makes a new lock elsewhere in the database, and old ones are removed
# Seconds after which an unused lock is old here: not an hour, of which a world has none, but more than any memory of
# those who left needs.
IDLE = WAITER_LEASE + 2.0


class Database(Server):
    """What happens to its tables, which are modelled elsewhere."""

    # A lease ends by the clock that is set back here. With an hour nobody would see its end.
    clock_back_max = 10.0
    tables: Any

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self._places: dict[str, int] = {}  # by nonce
        self._copy: object = None

    def prepare(self, faults: Faults, ttl: float) -> None:
        # A lock that was removed relies on the clock for its next fence: no world sets it back by an hour.
        if not faults.step_clock:
            self.tables.fence_idle = round(IDLE * 1_000_000)
        self.world.at(REAPED_EVERY, self._reap)

    def _reap(self) -> None:
        self.world.at(self.world.now + REAPED_EVERY, self._reap)
        if not self.is_stalled:
            self.execute(self.reap)

    @abstractmethod
    def reap(self) -> object:
        """Remove what is old."""

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
                entry = Entry(self.decode_name(lock.name), place, lock.fence, 1, exclusive=True)
                found.append((lock.nonce, entry, lock.expires or 0))
        for one in sorted(self.tables.tickets, key=_waits):
            places[one.nonce] = one.number
            entry = Entry(self.decode_name(one.name), one.number, one.fence, one.limit, one.exclusive)
            found.append((one.nonce, entry, one.expires))
        self._places = places
        return found

    def decode_name(self, name: str) -> str:
        """What is called so in the tables."""
        return name

    # ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────

    def lose_data(self) -> None:
        """The tables are dropped, and made anew by whoever asks next."""
        self.tables.restore(({}, [], {}))
        self.restart()
        self.recorder.observe(self.tickets())

    def back_up(self) -> None:
        self._copy = self.tables.snapshot()

    def restore_data(self) -> None:
        """A failover to a replica that lags behind. It takes longer than clocks are apart: time does not go back."""
        if self._copy is None:
            return
        self.tables.restore(self._copy)
        self.step_clock(self.world.choices.between(0.0, CLOCKS_APART))
        self.restart()
        self.recorder.observe(self.tickets())

    @property
    def extra_lease_time(self) -> float:
        return self.set_back

    def _clock(self) -> int:
        return round(self.wall() * 1_000_000)


def _waits(ticket: Any) -> bool:
    return ticket.fence is None
