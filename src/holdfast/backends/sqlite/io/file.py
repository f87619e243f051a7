"""The lock file itself, on the standard library's sqlite3: opening, transactions, forks, and what can go wrong.

For both runtimes: threads call `attempt` inline, asyncio calls it on a worker thread. One connection for each client;
its transactions are some 20 µs long, so callers take turns on it. An attempt never waits for other processes: it raises
Busy, and `patiently` tries again later, without keeping anybody else from their turn.

Nothing here, and nothing else in this process, may ever open the database file by itself: closing such a descriptor
would drop the POSIX locks that SQLite holds on it. Only stat() is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.sqlite.io import location, sessions
from holdfast.backends.sqlite.port import Transaction, Value
from holdfast.backends.sqlite.protocol.queue import REMOVE_SESSION
from holdfast.backends.url_parts import choice
from holdfast.core.ports import Runtime, StoreMissing
from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex

if TYPE_CHECKING:
    from holdfast.url import Address

T = TypeVar("T")

SCHEMA_VERSION = 4
_TABLES = ("marks", "marks_until", "tickets")
# What was there before, and how it becomes what schema.sql says; that makes what is missing altogether.
_OLD_VERSION, _OLD_TABLES = 3, ("tickets",)
_UPGRADE = (
    "ALTER TABLE tickets ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE tickets ADD COLUMN delay REAL NOT NULL DEFAULT 0",
)
_OWN_ROW = "SELECT nonce, session FROM tickets WHERE name = ''"
NEW_FILE = (
    "INSERT INTO tickets VALUES ('', 0, ?, ?, 0, 0, NULL, 9e15, 0.0, '', '', '', 0.0)"  # its own row never expires
)
_REPLACED_MAX = 100  # times that the file may be replaced under one attempt
_FORK_WAIT_MAX = 1.0  # seconds that a fork waits for our transactions, which take microseconds
_RETRY_MIN, _RETRY_MAX = 0.00005, 0.005  # seconds between two tries for the write lock; transactions are far shorter
# A checkpoint costs three fsyncs, one of them inside somebody's transaction. Our pages are few and small, so a long
# log is cheap: 10 MB of it between two checkpoints, instead of 4.
_PAGE_SIZE, _CHECKPOINT_PAGES = 1024, 10_000

_PROBLEMS = {
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; make both writable, or choose another path",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; is its folder there, and are both writable?",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; stop the programs that use it and move it away, with -wal and -shm",
    sqlite3.SQLITE_NOTADB: "the file is not a lock file, or damaged; choose another path, or move it away",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_PERM: "permission was denied",
}
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class Busy(Exception):
    """Another process holds the file's write lock just now, or what the message says."""


async def patiently(attempt: Callable[[], Awaitable[T]], file: LockFile, runtime: Runtime, deadline: float) -> T:
    """Try until nobody else is in the way. SQLite's own way of waiting sleeps up to 100 ms at a time.

    Raises:
        BackendUnavailable: not until the deadline; says who was in the way.
    """
    pause = _RETRY_MIN
    while True:
        try:
            return await attempt()
        except Busy as busy:
            if runtime.now() >= deadline:
                raise file.still_busy(busy) from busy
        await runtime.sleep(pause * (0.5 + runtime.jitter()))
        pause = min(2 * pause, _RETRY_MAX)


class LockFile:
    """One lock file as one client uses it."""

    _spoilt: set[str] = set()  # noqa: RUF012  (the process's: paths that this child of a fork cannot use)

    def __init__(self, address: Address, ring_own: Callable[[str], None]) -> None:
        self._path = path = location.path_of(address)
        self._ring_own = ring_own
        self._url = address.redacted
        self._folder = f"{path}-sessions"
        self._turn = Mutex()
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._store: Hashable = None
        self._is_durable = False  # how the connection commits
        self._standing = location.Standing(path)
        self._closed = False
        self._forking: int | None = None  # the thread that forks, while it keeps our turn
        self.session: sessions.Session | None = None
        location.check_path(path, is_local=choice(address.options, "local", ("no", "yes")) == "yes")
        system.on_fork(self)

    @property
    def sessions_folder(self) -> str:
        return self._folder

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        session = self.session
        return () if session is None else (session.fd,)

    def attempt(self, step: Callable[[Transaction], T], *, durable: bool = False, creates: bool = True) -> T:
        """Run `step` between BEGIN IMMEDIATE and COMMIT; again, if the file was replaced meanwhile.

        A `durable` one waits until the disk has it. Unless it `creates`, nothing is made of a missing or empty file.

        Raises:
            Busy: another process is in the way; nothing was done.
            StoreMissing: there is no lock file, and this is not to create it.
        """
        self._refuse_reentry()
        with self._turn:
            result, transaction = self._on_the_right_file(step, durable=durable, creates=creates)
        if transaction.afterwards:
            self._do_afterwards(transaction)
        return result

    def still_busy(self, busy: Busy) -> BackendUnavailable:
        """The error after the last try."""
        if str(busy):
            return self._unavailable(str(busy))
        pid = location.write_lock_holder(f"{self._path}-shm")
        if pid is None:
            return self._unavailable("other processes kept the file busy all the time")
        return self._unavailable(
            f"process {pid} stands in the middle of a transaction on this file; is it stopped? (kill -CONT {pid})"
        )

    def intact(self, store: Hashable) -> bool:
        """What granted leases under this identity is still what stands at the path, and others still see us alive."""
        if store is None or store != self._store or not self._standing.is_as_noted():
            return False
        session = self.session
        return session is not None and session.is_open()

    def close(self) -> None:
        self._refuse_reentry()
        with self._turn:
            self._closed = True
            session, self.session = self.session, None
            if session is None:
                return
            # What could not be given back counts as a dead process's, as long as the closed FIFO is there to tell so.
            keep = self._has_tickets(session.name)
            self._disconnect()
            if keep:
                session.abandon()
            else:
                session.close()

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────
    #
    # SQLite keeps the locks of a process in that process's memory. A child that inherits this memory, but not the
    # locks, must get rid of it before it opens the file itself, by closing what it inherited. That is safe only
    # between transactions, so a fork waits for ours to end.

    def _before_fork(self) -> None:
        if not self._turn.is_mine() and self._turn.acquire(timeout=_FORK_WAIT_MAX):
            self._forking = threading.get_ident()

    def _after_fork_in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._turn.release()

    def _after_fork(self) -> None:
        """In the child; `abandon` is called by our client."""

    def abandon(self) -> None:
        """In the child: let go of what was inherited."""
        if self.session is not None:
            self.session.abandon()  # or our life would stand in for the parent's
        if self._connection is None:
            return
        if self._forking is not None or (not self._turn.is_mine() and self._turn.acquire(blocking=False)):
            self._connection.close()
        else:
            # In the middle of a transaction not even closing is safe: the connection must stay referenced for ever,
            # and beside it SQLite would believe in locks that this process does not have.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._spoilt.add(self._path)
        self._connection = self._cursor = None

    def __del__(self) -> None:
        """Dropped with a client that was never closed. Its leases run out; their session closes itself."""
        connection = getattr(self, "_connection", None)
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _refuse_reentry(self) -> None:
        if self._turn.is_mine():
            raise self._unavailable(
                "a signal handler or a finaliser interrupted a transaction of this client and cannot use it"
            )

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────

    def _on_the_right_file(
        self, step: Callable[[Transaction], T], *, durable: bool, creates: bool
    ) -> tuple[T, _Transaction]:
        """What counts is done in the file that stands at the path when it is done, not in one removed before."""
        for _ in range(_REPLACED_MAX):
            cursor = self._cursor or self._open(creates=creates)
            session = self.session
            if session is None:
                raise self._unavailable("the client is closed")
            transaction = _Transaction(cursor, self._folder, session.name, self._store)
            try:
                result = self._run(transaction, step, durable=durable)
            except BackendError:
                if self.intact(self._store):
                    raise
            else:
                if self.intact(self._store):
                    return result, transaction
            self._disconnect()
        raise OutcomeUnknown(backend=self._url, problem="the file is removed or replaced again and again")

    def _do_afterwards(self, transaction: _Transaction) -> None:
        for session, nonce in transaction.afterwards:
            if nonce is None:
                sessions.bury(self._folder, session)
            elif session == transaction.session:
                self._ring_own(nonce)
            else:
                sessions.ring(self._folder, session, nonce)

    def _run(self, transaction: _Transaction, step: Callable[[Transaction], T], *, durable: bool) -> T:
        try:
            if durable is not self._is_durable:
                transaction.row(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._is_durable = durable
            return transaction.run(step)
        except sqlite3.Error as error:
            self._roll_back(transaction)
            problem = self._translated(error)
            if transaction.is_committing and _primary(error) not in (*_BUSY, sqlite3.SQLITE_FULL):
                raise OutcomeUnknown(backend=self._url, problem=str(problem)) from error
            raise problem from error
        except BaseException:
            self._roll_back(transaction)
            raise

    def _roll_back(self, transaction: _Transaction) -> None:
        try:
            transaction.roll_back()
        except sqlite3.Error:
            # The connection is of no use any more. Without it the transaction is rolled back all the same.
            self._disconnect()

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, *, creates: bool) -> sqlite3.Cursor:
        if self._closed:
            raise self._unavailable("the client is closed")
        if self._path in self._spoilt:
            raise self._unavailable(
                "this process was forked in the middle of a transaction of its parent's and cannot use the same file; "
                "start it with the 'spawn' method, or fork before the parent uses locks"
            )
        connection: sqlite3.Connection | None = None
        before = location.identity(self._path)
        if before is None and not creates:
            raise self._missing("there is no lock file")
        try:
            if creates:
                location.make_folder(os.path.dirname(self._path))
            with self._nobody_else_opens():
                problem = location.second_path_problem(self._path)
                if problem is not None:
                    raise self._unavailable(problem)
                if creates:
                    location.prepare_new(self._path)
                elif location.identity(self._path) is None:
                    raise self._missing("there is no lock file")
                connection = sqlite3.connect(
                    self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=64
                )
                store = self._prepare(connection, creates=creates)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                if before is not None and location.identity(self._path) != before:
                    raise Busy from error  # it was taken away under SQLite, which may call that anything
                raise self._translated(error) from error
            if isinstance(error, OSError):
                raise self._unavailable(str(error)) from error
            raise
        self._connection, self._store, self._is_durable = connection, store, False
        self._cursor = connection.cursor()
        return self._cursor

    @contextlib.contextmanager
    def _nobody_else_opens(self) -> Iterator[None]:
        """Between finding no file and having made one, nobody else may make one too."""
        import fcntl  # here, because the simulator runs this module where there is none

        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                problem = "another program keeps an flock() on the folder, which is needed to open the file"
                raise Busy(problem) from error
            yield
        finally:
            os.close(folder)

    def _prepare(self, connection: sqlite3.Connection, *, creates: bool) -> Hashable:
        """Make it ours, and say which one it is: that must not have changed since the connection was opened."""
        before = location.identity(self._path)
        version = self._version(connection)  # before anything is changed in it
        if not creates and version != SCHEMA_VERSION:
            if version == 0:
                raise self._missing("the file is empty")
            raise self._unavailable(
                f"the file has the tables of an older holdfast (schema version {version}, this one speaks "
                f"{SCHEMA_VERSION}): they are brought up to date when a lock is taken, not by a call that only reads"
            )
        if version == 0:
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise self._unavailable(
                f"the file system does not allow SQLite's WAL mode (got {mode!r}): choose another path"
            )
        # A power cut ends every holder, so a commit that it undoes is missed by nobody; the fence has its time floor.
        # What has to outlive it (marks) is committed as `durable`.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._bring_up_to_date(connection)
            dead = self._move_in(connection)
            file_id, _ = self._own_row(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the first error is the one to report; closing rolls back too
                connection.execute("ROLLBACK")
            raise
        for name in dead:
            sessions.bury(self._folder, name)
        files = self._standing.note()
        if before is None or location.identity(self._path) != before:
            raise Busy  # replaced while we opened it: from the beginning
        # A lease ends with the session that it was granted to, because other processes see only whether that one lives.
        return (files, file_id, self.session and self.session.name)

    def _version(self, connection: sqlite3.Connection) -> int:
        """Of its tables; 0 if the file is empty, to be made ours. Raises if it is somebody else's, or a newer one's."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        names = tuple(row[0] for row in connection.execute("SELECT name FROM sqlite_schema ORDER BY name"))
        if version == 0 and not names:
            return 0
        if "tickets" not in names:
            raise self._unavailable("this is somebody else's SQLite file: give holdfast a file of its own")
        if (version, names) not in {(SCHEMA_VERSION, _TABLES), (_OLD_VERSION, _OLD_TABLES)}:
            raise self._unavailable(
                f"the file has schema version {version}, this holdfast speaks {SCHEMA_VERSION}: "
                "use one version of holdfast for one file"
            )
        return int(version)

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Make what is missing in it; all of it, if it is new."""
        version = self._version(connection)
        if version == SCHEMA_VERSION:
            return
        if version == _OLD_VERSION:
            self._nobody_uses_the_old_one()
            for statement in _UPGRADE:
                connection.execute(statement)
        script = resources.files("holdfast.backends.sqlite").joinpath("sql", "schema.sql").read_text()
        for statement in script.split(";\n"):
            connection.execute(statement)
        if version == 0:
            connection.execute(NEW_FILE, (system.nonce(), location.boot_id()))
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _nobody_uses_the_old_one(self) -> None:
        """Who still speaks it would let others in during a lock's delay, and could not add tickets any more."""
        if os.path.isdir(self._folder) and sessions.census(self._folder).living:
            raise self._unavailable(
                f"programs with an older holdfast use the file (schema version {_OLD_VERSION}): end them first, then "
                "it is brought up to date; or give this one a file of its own"
            )

    def _move_in(self, connection: sqlite3.Connection) -> list[str]:
        """Sweep out what is over, then put our session beside the file. Returns the dead, to be buried after COMMIT."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        dead, living = sessions.census(self._folder)
        boot = location.boot_id()
        if self._own_row(connection)[1] != boot:
            if living:
                raise self._unavailable(
                    "it is in use by processes of this machine that see another boot id or clock than this one "
                    "(other containers?): give each side a file of its own, or use a store that is made for a network"
                )
            connection.execute("DELETE FROM tickets WHERE name <> ''")
            connection.execute("UPDATE marks SET expires = 0.0")
            connection.execute("UPDATE tickets SET session = ? WHERE name = ''", (boot,))
        connection.execute("DELETE FROM tickets WHERE expires <= ?", (system.now(),))
        connection.executemany(REMOVE_SESSION, [(name,) for name in dead])
        if self.session is None or not (self.session.is_open() and self.session.is_in_place()):
            self.session = sessions.Session(self._folder, system.nonce())
        return dead

    def _own_row(self, connection: sqlite3.Connection) -> tuple[str, str]:
        """What tells this file from others, and the boot that its times count from."""
        rows: list[tuple[str, str]] = connection.execute(_OWN_ROW).fetchall()
        if not rows:
            raise self._unavailable(_PROBLEMS[sqlite3.SQLITE_CORRUPT])
        return rows[0]

    def _has_tickets(self, session: str) -> bool:
        if self._connection is None:
            return False
        try:
            found = self._connection.execute("SELECT 1 FROM tickets WHERE session = ? LIMIT 1", (session,)).fetchone()
        except sqlite3.Error:
            return True
        return found is not None

    def _disconnect(self) -> None:
        """Begin again, next time, with what stands at the path then."""
        if self._connection is not None:
            connection, self._connection, self._cursor = self._connection, None, None
            connection.close()

    def _translated(self, error: sqlite3.Error) -> Exception:
        primary = _primary(error)
        if primary in _BUSY:
            return Busy()
        problem = _PROBLEMS.get(primary)
        return self._unavailable(f"{problem} ({error})" if problem else str(error))

    def _missing(self, problem: str) -> StoreMissing:
        return StoreMissing(backend=self._url, problem=f"{problem} yet: it is created when a lock is taken")

    def _unavailable(self, problem: str) -> BackendUnavailable:
        return BackendUnavailable(backend=self._url, problem=problem)


class _Transaction:
    """What a step sees; open cursors are closed before COMMIT, so that no read outlives its transaction."""

    __slots__ = ("_cursor", "_folder", "_reading", "afterwards", "is_committing", "now", "session", "store", "wall")

    now: float
    wall: float

    def __init__(self, cursor: sqlite3.Cursor, folder: str, session: str, store: Hashable) -> None:
        self._cursor = cursor  # for all that is read at once
        self._reading: list[sqlite3.Cursor] = []
        self._folder = folder
        self.session = session
        self.store = store
        self.is_committing = False
        self.afterwards: list[tuple[str, str | None]] = []  # sessions to ring, with the nonce; to bury, without

    def run(self, step: Callable[[Transaction], T]) -> T:
        execute = self._cursor.execute
        execute("BEGIN IMMEDIATE")
        self.now, self.wall = system.now(), time.time()
        result = step(self)
        if self._reading:
            self._end_reading()
        self.is_committing = True
        execute("COMMIT")
        return result

    def roll_back(self) -> None:
        self._end_reading()
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def _end_reading(self) -> None:
        for cursor in self._reading:
            cursor.close()
        self._reading.clear()

    def row(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        rows = self._cursor.execute(sql, values).fetchall()
        return rows[0] if rows else None

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        cursor = self._cursor.connection.execute(sql, values)
        self._reading.append(cursor)
        return cursor

    def change(self, sql: str, *values: Value) -> int:
        return self._cursor.execute(sql, values).rowcount

    def is_dead(self, session: str) -> bool:
        return sessions.is_dead(self._folder, session)

    def bury(self, session: str) -> None:
        self.afterwards.append((session, None))

    def ring(self, session: str, nonce: str) -> None:
        self.afterwards.append((session, nonce))


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
