"""The sqlite protocol on a real SQLite database in memory, in virtual time.

All processes are on one machine and share its clock. The faults: a transaction has to wait, or its COMMIT fails with an
unknown outcome; a process dies, which the others see at once; a wake-up is lost; the file is removed or replaced by an
old copy; the wall clock is set back.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.sqlite.io.lock_file import INSERT_FILE_ROW
from holdfast.backends.sqlite.protocol.guarantees import GUARANTEES
from holdfast.backends.sqlite.protocol.queue import REMOVE_SESSION, SqliteBackend
from holdfast.backends.texts import text_of
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast_lab.sim.faults import POOLED
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast.backends.sqlite.port import Transaction, Value
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

_ALL = """SELECT nonce, name, number, fence, "limit", exclusive, expires, session, delay FROM tickets WHERE name <> ''
          ORDER BY name, number"""


class SqliteServer(Server):
    """One lock file and its machine."""

    guarantees = GUARANTEES
    orphaning_faults = frozenset({"old_data"})  # deaths are seen at once
    keeps_order = True
    # One machine has one clock. A wall clock that is ahead ends no lease: it only raises the lower bound of the fences.
    excluded_faults = POOLED | {"drift", "leap_clock"}
    backend: Callable[..., Backend] = SqliteBackend
    transaction: type[SimTransaction]

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.file = _new_file(0)
        self.files = 1
        self.store: Hashable = 0
        self.ports: dict[str, _Port] = {}  # by session
        self.dead: set[str] = set()
        self._copy: bytes | None = None

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        session = f"{link.process.name}.{len(self.ports)}"
        port = _Port(self, link, runtime, session)
        self.ports[session] = port
        return type(self).backend("sim://sqlite", port, runtime)

    def execute(self, step: Callable[[], T]) -> T:
        return step()

    def transact(self, port: _Port, step: Callable[[Transaction], T]) -> T:
        if port.opened != self.store:
            self._sweep()
            port.opened = self.store
        transaction = type(self).transaction(self, port.session)
        self.file.execute("BEGIN IMMEDIATE")
        try:
            result = step(transaction)
        except BaseException:
            transaction.end()
            self.file.execute("ROLLBACK")
            raise
        transaction.end()
        self.file.execute("COMMIT")
        self.recorder.observe(self.tickets())
        for session, notification in transaction.wakeups:
            if session not in self.dead:
                self.ports[session].wake(notification)
        return result

    def _sweep(self) -> None:
        """Remove ended tickets, as every process does when it opens the file."""
        self.file.execute("DELETE FROM tickets WHERE expires <= ?", (self.world.now,))
        self.file.executemany(REMOVE_SESSION, [(session,) for session in sorted(self.dead)])
        self.recorder.observe(self.tickets())

    def tickets(self) -> dict[str, Entry]:
        return {
            nonce: Entry(name, number, fence, limit, bool(exclusive))
            for nonce, name, number, fence, limit, exclusive, _, _, _ in self.file.execute(_ALL)
        }

    def live(self) -> dict[str, Entry]:
        return {
            nonce: Entry(name, number, fence, limit, bool(exclusive))
            for nonce, name, number, fence, limit, exclusive, expires, session, delay in self.file.execute(_ALL)
            if expires > self.world.now and (session not in self.dead or (fence is not None and delay > 0))
        }

    def state(self) -> object:
        tickets = self.file.execute("SELECT * FROM tickets").fetchall()
        registers = self.file.execute("SELECT * FROM marks").fetchall()
        records = self.file.execute("SELECT * FROM records").fetchall()
        return tickets, registers, records, self.store, sorted(self.dead), [port.opened for port in self.ports.values()]

    def break_lock(self, name: str, fence: int) -> None:
        self.file.execute("DELETE FROM tickets WHERE name = ? AND fence = ?", (name, fence))
        self.recorder.observe(self.tickets())

    def process_died(self, process: Process) -> None:
        died = {session for session, port in self.ports.items() if port.process is process}
        self.dead |= died
        for port in self.ports.values():
            port.sessions_died(died)

    def lose_data(self) -> None:
        self._replace(_new_file(self.files))

    def back_up(self) -> None:
        self._copy = self.file.serialize()

    def restore_data(self) -> None:
        if self._copy is not None:
            old = sqlite3.connect(":memory:", isolation_level=None, cached_statements=64)
            old.deserialize(self._copy)
            self._replace(old)

    def end(self) -> None:
        self.file.close()

    def _replace(self, file: sqlite3.Connection) -> None:
        self.file.close()
        self.file = file
        self.store = self.files
        self.files += 1
        self.recorder.observe(self.tickets())


class _Port:
    """A SqlitePort in virtual time."""

    def __init__(self, server: SqliteServer, link: Link, runtime: SimRuntime, session: str) -> None:
        self._server = server
        self._link = link
        self.process = link.process
        self.session = session
        self.opened: Hashable = None  # the file that it has open
        self.wakeups = Wakeups(runtime)
        self._watched: dict[str, frozenset[str]] = {}

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return ()

    async def transact(
        self, step: Callable[[Transaction], T], *, deadline: float, durable: bool = False, creates: bool = True
    ) -> T:
        return await self._link.request(lambda: self._server.transact(self, step), deadline)

    def intact(self, store: Hashable) -> bool:
        return store == self._server.store

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        self._watched[nonce] = frozenset(sessions)
        if not self._server.dead.isdisjoint(self._watched[nonce]):
            self.wake(Notification(nonce))

    def unsubscribe(self, nonce: str) -> None:
        self._watched.pop(nonce, None)

    def wake(self, notification: Notification) -> None:
        self._link.notify(self.wakeups.wake, notification)

    def sessions_died(self, sessions: set[str]) -> None:
        for nonce, watched in self._watched.items():
            if not watched.isdisjoint(sessions):
                self.wake(Notification(nonce))

    async def close(self) -> None:
        self._server.dead.add(self.session)

    def abandon(self) -> None:
        """The process has ended; `process_died` handles it."""


class SimTransaction:
    """A Transaction on the clock of the simulated world."""

    def __init__(self, server: SqliteServer, session: str) -> None:
        self._server = server
        self._reading: list[sqlite3.Cursor] = []
        self.now = server.world.now
        self.wall = server.wall()
        self.session = session
        self.store = server.store
        self.wakeups: list[tuple[str, Notification]] = []

    def row(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        rows = self._server.file.execute(sql, values).fetchall()
        return rows[0] if rows else None

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        cursor = self._server.file.execute(sql, values)
        self._reading.append(cursor)
        return cursor

    def change(self, sql: str, *values: Value) -> int:
        return self._server.file.execute(sql, values).rowcount

    def is_dead(self, session: str) -> bool:
        return session in self._server.dead

    def reap(self, session: str) -> None:
        """There are no FIFOs here."""

    def wake(self, session: str, notification: Notification) -> None:
        self.wakeups.append((session, notification))

    def end(self) -> None:
        for cursor in self._reading:
            cursor.close()


@functools.cache
def _schema() -> list[str]:
    return text_of("holdfast.backends.sqlite", "sql/schema.sql").split(";\n")


def _new_file(number: int) -> sqlite3.Connection:
    file = sqlite3.connect(":memory:", isolation_level=None, cached_statements=64)
    for statement in _schema():
        file.execute(statement)
    file.execute(INSERT_FILE_ROW, (f"file {number}", "boot"))
    return file


SqliteServer.transaction = SimTransaction
