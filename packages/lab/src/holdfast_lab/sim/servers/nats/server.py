"""A bucket of NATS in a simulated world: a cluster that acts as one server, and whose entries expire by its clock.

It loses no data. At a restart another server becomes the leader, with another clock: clocks differ by up to CLOCK_SKEW.
For a while the old leader may still answer with its old data; it can refuse a put, but not execute one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.nats.port import ABSENT, Entry, Put
from holdfast.backends.nats.protocol.bucket import MARKER_SECONDS
from holdfast.backends.nats.protocol.guarantees import GUARANTEES
from holdfast.backends.nats.protocol.keys import LOCKS
from holdfast.backends.nats.protocol.lock import NatsBackend
from holdfast.backends.nats.protocol.values import Value
from holdfast.errors import OutcomeUnknown
from holdfast_lab.sim.recorder import Entry as Ticket
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.nats.port import SimPort
from holdfast_lab.sim.servers.nats.store import Store, Stored

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

CLOCK_SKEW = 1.0  # seconds
FIRST_SEQ = 1_000_000
REMOVAL_MAX = 1.0  # seconds from the end of an entry to the proposal of its removal, and from there to the removal
OLD_LEADER_MAX = 5.0  # seconds for which an old leader answers
OLD_LEADER_ANSWERS = 0.3  # the share of requests that it answers
NOTICED_MAX = 1.0  # seconds until a client notices that its connection for notifications is lost


class NatsServer(Server):
    """One bucket."""

    guarantees = GUARANTEES
    kinds = ("lock",)
    # The server does not see that a process dies. An old leader may report that a lease is gone, which then expires. A
    # put without an answer may be executed after MARKER_SECONDS, when no run waits for it any more.
    orphaning_faults = frozenset({"crash", "restart", "leap_clock"})
    # Entries expire by the clock that is set back here. After an hour no run would reach their end.
    clock_back_max = 10.0
    backend: ClassVar[Callable[..., Any]] = NatsBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.store = Store(FIRST_SEQ, MARKER_SECONDS)
        self.ports: list[SimPort] = []
        self._subscribers: dict[SimPort, int] = {}  # with the number of the connection
        self._skew = 0.0  # of the clock of the leader
        self._old: dict[str, Stored] = {}  # the entries of the old leader
        self._old_until = 0.0

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime)
        self.ports.append(port)
        backend: Backend = type(self).backend("sim://nats", port, runtime, replicas=0, clock_skew=CLOCK_SKEW)
        return backend

    # ── requests of clients ──────────────────────────────────────────────────────────────────────────────────────

    def put(self, put: Put) -> int | None:
        if self._old_leader_answers():
            entry = self._old.get(put.key)
            if put.last != (0 if entry is None else entry.seq):
                return None
            raise OutcomeUnknown(backend="sim", problem="its proposal was not executed")
        seq = self.store.put(put, self.clock())
        if seq is not None:
            self.stored(put.key)
        return seq

    def get(self, keys: Sequence[str]) -> list[Entry]:
        stored, now = self._old if self._old_leader_answers() else self.store.entries, self.clock()
        return [Entry(*stored[key][:3], stored[key].expires - now) if key in stored else ABSENT for key in keys]

    def subscribe(self, port: SimPort) -> None:
        self._subscribers[port] = port.connection

    def disconnect(self, port: SimPort) -> bool:
        return self._subscribers.pop(port, None) is not None

    def _old_leader_answers(self) -> bool:
        return self.world.now < self._old_until and self.world.choices.chance(OLD_LEADER_ANSWERS)

    def stored(self, key: str) -> None:
        """An entry was stored: publish a marker, and expire the entry in time."""
        entry = self.store.entries[key]
        if entry.is_marker:
            for port, connection in self._subscribers.items():
                port.link.notify(port.receive, connection, key, entry.seq)
        self._schedule(key, entry)

    # ── expiry ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule(self, key: str, entry: Stored) -> None:
        left = max(0.0, entry.expires - self.clock()) + self._late()
        self.world.at(self.world.now + left, self.when_running, self._propose_removal, key, entry)

    def _propose_removal(self, key: str, entry: Stored) -> None:
        if self.store.has_expired(key, entry.seq, self.clock()):
            self.world.at(self.world.now + self._late(), self.when_running, self.remove, key, entry)
        elif self.store.entries.get(key) == entry:  # the clock was set back
            self._schedule(key, entry)

    def remove(self, key: str, entry: Stored) -> None:
        self.execute(lambda: self.store.remove(key, entry.seq))

    def _late(self) -> float:
        choices = self.world.choices
        return choices.between(0.0, REMOVAL_MAX) if choices.chance(0.5) else 0.0

    def clock(self) -> float:
        return self.wall() + self._skew

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Ticket]:
        tickets = {}
        for key, entry in self.store.entries.items():
            value = Value.parse(entry.value) if key.startswith(LOCKS) and not entry.is_marker else None
            if value is not None:
                fence = value.fence or entry.seq
                tickets[value.nonce] = Ticket(value.name, fence, fence, 1, exclusive=True)
        return tickets

    def live(self) -> dict[str, Ticket]:
        return self.tickets()

    def state(self) -> object:
        subscribers = [(port.link.process.name, connection) for port, connection in self._subscribers.items()]
        return self.store.entries, self.store.last_seq, self.starts, self._skew, subscribers

    def break_lock(self, name: str, fence: int) -> None:
        def purge() -> None:
            for key, entry in list(self.store.entries.items()):
                value = None if entry.is_marker else Value.parse(entry.value)
                if value is not None and value.name == name and (value.fence or entry.seq) == fence:
                    self.store.put(Put(key, b"", entry.seq, MARKER_SECONDS, is_marker=True), self.clock())
                    self.stored(key)

        self.execute(purge)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        self.starts += 1
        self._old, self._old_until = dict(self.store.entries), self.world.now + OLD_LEADER_MAX
        self._skew = self.world.choices.between(0.0, CLOCK_SKEW)
        for key, entry in self.store.entries.items():
            self._schedule(key, entry)
        for port in self.ports:
            self._break_connection(port)

    def step_clock(self, seconds: float) -> None:
        super().step_clock(seconds)
        for key, entry in self.store.entries.items():
            self._schedule(key, entry)

    def drop(self, process: Process) -> bool:
        return sum(self._break_connection(port) for port in self.ports if port.link.process is process) > 0

    def process_died(self, process: Process) -> None:
        for port in self.ports:
            if port.link.process is process:
                self.disconnect(port)

    def _break_connection(self, port: SimPort) -> bool:
        if not self.disconnect(port):
            return False
        noticed = self.world.now + self.world.choices.between(0.0, NOTICED_MAX)
        self.world.at(noticed, port.link.process.do, port.connection_lost, port.connection)
        return True

    @property
    def recovery_time(self) -> float:
        return OLD_LEADER_MAX if self.starts > 1 else 0.0

    @property
    def extra_lease_time(self) -> float:
        # A lease is kept for CLOCK_SKEW more, rounded up to seconds, and is removed up to 2 * REMOVAL_MAX late.
        return self.set_back + 2 * CLOCK_SKEW + 1.0 + 2 * REMOVAL_MAX
