"""The common parts of the models of MySQL and PostgreSQL: tables, clock, reaper, restarts, replicas, waiter sessions.

Leases end by the server's wall clock, which can be set: if it is set forward, they end early. Committed data is on
disk: a restart or a crash loses nothing, except the requests that are on their way at that moment. A replica that takes
over has the data of some time ago.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import POLL_INTERVAL_BEHIND, WAITER_LEASE
from holdfast_lab.sim.faults import POOLED
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.network import SessionRequest
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.world import World

K = TypeVar("K")  # the key of a lock or register
L = TypeVar("L", bound=Any)  # a row of holdfast_locks
T = TypeVar("T", bound=Any)  # a row of holdfast_tickets
R = TypeVar("R", bound=Any)  # a row of holdfast_marks
W = TypeVar("W", bound=Any)  # a row of holdfast_records
C = TypeVar("C", bound="WaiterConnection")
A = TypeVar("A")  # an answer

CLOCKS_APART = 0.05  # seconds by which a replica's clock may be ahead of its primary's
REAPED_EVERY = 2.0  # seconds after which a new lock elsewhere in the database triggers the removal of old rows
DELETE_RATE = 0.1  # probability that an operator also deletes a row at that time
# Seconds after which the row of an unused lock is removed. On a real server this is an hour, which is longer than any
# simulation. It is longer than the tickets in `departed` are remembered.
IDLE = WAITER_LEASE + 2.0
RETRY = 1.0  # seconds between attempts to send through a network that is cut


class DatabaseTables(Generic[K, L, T, R, W]):
    """The rows of one database."""

    def __init__(self, clock: Callable[[], int], fence_idle: float) -> None:
        self.clock = clock
        self.locks: dict[K, L] = {}
        self.tickets: list[T] = []
        self.registers: dict[K, R] = {}
        self.records: dict[K, W] = {}
        self.fence_idle = us(fence_idle)

    def draw(self, lock: L | None, now: int) -> int:
        """The next number of a lock, with or without a row."""
        return now if lock is None else max(lock.drawn + 1, now)

    def has_expired(self, expires: int | None, now: int) -> bool:
        return expires is not None and expires <= now

    def read_record(self, key: K) -> W | None:
        record = self.records.get(key)
        return None if record is None or self.has_expired(record.expires, self.clock()) else record

    def swap_record(self, key: K, expected: str, row: W | None) -> W | None:
        """holdfast_swap_record; `row` is the new row, or None to remove the record."""
        record = self.read_record(key)
        if not self.is_expected(record, expected):
            return record
        if row is None:
            self.records.pop(key, None)
        else:
            self.records[key] = row
        return row

    def is_expected(self, record: W | None, expected: str) -> bool:
        return ("" if record is None else record.nonce) == expected

    def reap_expired_records(self, rows: int) -> int:
        """Remove up to `rows` expired records, the oldest first. Returns the number of removed records."""
        now = self.clock()
        old = [key for key, record in self.records.items() if self.has_expired(record.expires, now)]
        old = sorted(old, key=lambda key: self.records[key].expires)[:rows]
        for key in old:
            del self.records[key]
        return len(old)

    def snapshot(self) -> tuple[dict[K, L], list[T], dict[K, R], dict[K, W]]:
        return (
            {key: replace(lock) for key, lock in self.locks.items()},
            [replace(ticket) for ticket in self.tickets],
            {key: replace(register) for key, register in self.registers.items()},
            {key: replace(record) for key, record in self.records.items()},
        )

    def restore(self, snapshot: tuple[dict[K, L], list[T], dict[K, R], dict[K, W]]) -> None:
        self.locks, self.tickets, self.registers, self.records = snapshot
        self.locks, self.tickets, self.registers, self.records = self.snapshot()


class Database(Server):
    """A server with tables, which are modelled elsewhere."""

    tables: Any
    # The server does not notice that a client has died. It remembers a release for ten seconds, unless data are lost.
    orphaning_faults = frozenset({"crash", "stall", "lose_data", "old_data", "leap_clock"})

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self._numbers: dict[str, int] = {}  # by nonce: the number in the queue
        self._copy: object = None
        self._delete_rate = 0.0

    def prepare(self, faults: Faults, ttl: float) -> None:
        # The next fence of a removed lock relies on the clock: no fault sets it back by an hour.
        if not faults.step_clock:
            self.tables.fence_idle = us(IDLE)
            self._delete_rate = DELETE_RATE
        self.world.at(REAPED_EVERY, self._reap)

    def _reap(self) -> None:
        self.world.at(self.world.now + REAPED_EVERY, self._reap)
        if not self.is_stalled:
            self.execute(self.reap)

    def reap(self) -> object:
        """Remove old rows. At times an operator deletes the row of a lock that has no exclusive holder."""
        keys = [key for key, lock in self.tables.locks.items() if lock.nonce is None and lock.departed is None]
        deletable = self.deletable(keys)
        if deletable and self.world.choices.chance(self._delete_rate):
            del self.tables.locks[self.world.choices.pick(deletable)]
        return self.reap_tables()

    def deletable(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The locks whose rows an operator may delete without breaking a guarantee."""
        return keys

    @abstractmethod
    def reap_tables(self) -> object: ...

    # ── tickets ──────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        return {nonce: entry for nonce, entry, _ in self._entries()}

    def live(self) -> dict[str, Entry]:
        now = self._clock()
        return {nonce: entry for nonce, entry, expires in self._entries() if expires > now}

    def _entries(self) -> list[tuple[str, Entry, int]]:
        """Every ticket, holders first: its nonce, its entry, and when it expires."""
        entries = []
        numbers = {}
        for lock in self.tables.locks.values():
            if lock.nonce is not None and lock.fence is not None:
                # An exclusive holder has no queue entry any more. It keeps the number of its former entry, also if it
                # is granted again with a new fence because the first grant got no answer.
                number = numbers[lock.nonce] = self._numbers.get(lock.nonce, lock.fence)
                entry = Entry(self.decode_name(lock.name), number, lock.fence, 1, exclusive=True)
                entries.append((lock.nonce, entry, lock.expires or 0))
        for ticket in sorted(self.tables.tickets, key=_waits):
            numbers[ticket.nonce] = ticket.number
            name = self.decode_name(ticket.name)
            entry = Entry(name, ticket.number, ticket.fence, ticket.limit, ticket.exclusive)
            entries.append((ticket.nonce, entry, ticket.expires))
        self._numbers = numbers
        return entries

    def decode_name(self, name: str) -> str:
        """The name of a lock, from its name in the tables."""
        return name

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lose_data(self) -> None:
        """The tables are dropped, and created again by the next request."""
        self.tables.restore(({}, [], {}, {}))
        self.restart()
        self.recorder.observe(self.tickets())

    def back_up(self) -> None:
        self._copy = self.tables.snapshot()

    def restore_data(self) -> None:
        """Fail over to a replica that lags behind.

        A failover takes longer than the difference between two clocks, so the time of the server does not go back.
        """
        if self._copy is None:
            return
        self.tables.restore(self._copy)
        self.step_clock(self.world.choices.between(0.0, CLOCKS_APART))
        self.restart()
        self.recorder.observe(self.tickets())

    @property
    def extra_lease_time(self) -> float:
        return self.set_back

    @property
    def extra_idle_time(self) -> float:
        """The same for leases that block a waiter: the next poll of the waiter corrects their end."""
        return min(self.set_back, POLL_INTERVAL_BEHIND)

    def _clock(self) -> int:
        return round(self.wall() * 1_000_000)


class WaiterConnection:
    """The connection of one waiter session, seen from both ends: `is_over` at the server, `is_open` at the client."""

    def __init__(self, port: Any, number: int) -> None:
        self.port = port
        self.number = number
        self.is_over = False
        self.is_open = True
        self._event = port.runtime.event()
        self._in_flight: list[SessionRequest] = []

    async def request(self, step: Callable[[], A], deadline: float) -> A:
        """Run the step on the server."""
        answer: A = await self.port.link.request_in_session(step, deadline, self._in_flight)
        return answer

    def fail_requests(self) -> None:
        """The client notices that the session has ended: its requests in flight fail at once."""
        for request in self._in_flight:
            request.fail()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._event.set()
            world = self.port.link.process.world
            world.at(world.now + self.port.link.delay(), self.server_sees_close)

    def server_sees_close(self) -> None:
        """The server sees that the client has closed it, unless the network is cut."""
        link, server = self.port.link, self.port.server
        if link.requests_cut and not link.process.is_dead:
            link.process.world.at(link.process.world.now + RETRY, self.server_sees_close)
        else:
            server.when_running(server.end_session, self)

    @abstractmethod
    def end_soon(self) -> None:
        """The session has ended; the client sees that some time later."""


class SessionDatabase(Database, Generic[C]):
    """A server whose waiters wait in sessions, each on a connection of its own. It has no notifications and no pool."""

    excluded_faults = POOLED | {"lose_notification"}
    kinds = ("lock",)
    connection_type: Callable[[Any, int], C]

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.sessions: dict[int, C] = {}
        self._session_count = 0

    def new_session(self, port: object) -> C:
        self._session_count += 1
        connection = self.sessions[self._session_count] = type(self).connection_type(port, self._session_count)
        return connection

    def end_session(self, connection: C) -> None:
        if not connection.is_over:
            connection.is_over = True
            del self.sessions[connection.number]
            self.release_locks(connection)

    @abstractmethod
    def release_locks(self, connection: C) -> None:
        """Release the locks of a session that has ended, and remove it from all queues."""

    @abstractmethod
    def clear_queues(self) -> None: ...

    def sessions_of(self, process: Process) -> list[C]:
        return [connection for connection in self.sessions.values() if connection.port.link.process is process]

    def terminate(self, connections: Sequence[C]) -> bool:
        """End these sessions at the server. Returns whether there were any."""
        for connection in connections:
            self.end_session(connection)
            connection.end_soon()
        return bool(connections)

    def restart(self) -> None:
        super().restart()
        self.clear_queues()
        self.terminate([*self.sessions.values()])

    def drop(self, process: Process) -> bool:
        return self.terminate(self.sessions_of(process))


def by_number(ticket: Any) -> int:
    """The number of a ticket in the queue, as a key for sorting."""
    number: int = ticket.number
    return number


def _waits(ticket: Any) -> bool:
    return ticket.fence is None
