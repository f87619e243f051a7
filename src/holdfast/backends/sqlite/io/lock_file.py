"""The lock file on the standard library's sqlite3: opening, transactions, forks and errors.

Both runtimes use it: threads call `attempt` inline, asyncio calls it on a worker thread. A client has one connection.
Its transactions take about 20 µs, so its callers share it through a mutex. An attempt never waits for other processes:
it raises Busy, and the port tries again later without holding the mutex.

No code in this process may open the database file except SQLite: closing such a descriptor would drop the POSIX locks
that SQLite holds on the file. Only stat() is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any, TypeVar

from holdfast.backends.sqlite.config import SqliteConfig
from holdfast.backends.sqlite.io import file_system, sessions
from holdfast.backends.sqlite.port import OldTables, Transaction, Value
from holdfast.backends.sqlite.protocol.queue import REMOVE_SESSION
from holdfast.backends.texts import text_of
from holdfast.core.notifications import Wakeups
from holdfast.core.ports import Runtime, StoreMissing
from holdfast.core.tickets import Notification
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.runtimes import system
from holdfast.runtimes.threads import Mutex

T = TypeVar("T")

SCHEMA_VERSION = 6
# The tables and indexes of each version that can be used or upgraded.
_TABLES = {
    3: ("tickets",),
    4: ("marks", "marks_until", "tickets"),
    5: (_LATEST := ("marks", "marks_until", "records", "records_until", "sqlite_autoindex_records_1", "tickets")),
    6: _LATEST,
}
# The statements that upgrade tables from a version; schema.sql then creates the missing ones.
_ADD_TTL = "ALTER TABLE tickets ADD COLUMN ttl REAL NOT NULL DEFAULT 0"
_UPGRADES = {
    3: (
        "ALTER TABLE tickets ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE tickets ADD COLUMN delay REAL NOT NULL DEFAULT 0",
        _ADD_TTL,
    ),
    4: (_ADD_TTL,),
    5: (_ADD_TTL,),
}
_FILE_ROW = "SELECT nonce, session FROM tickets WHERE name = ''"
# The row of the file never expires.
INSERT_FILE_ROW = "INSERT INTO tickets VALUES ('', 0, ?, ?, 0, 0, NULL, 9e15, 0.0, '', '', '', 0.0, 0.0)"
_REPLACED_MAX = 100  # replacements of the file that one attempt tolerates
_FORK_WAIT_MAX = 1.0  # seconds for which a fork waits for our transactions, which take microseconds
_RETRY_MIN, _RETRY_MAX = 0.00005, 0.005  # seconds between two attempts at the write lock; transactions are far shorter
# A row of a ticket has 250 to 400 bytes. A page of 1024 bytes keeps at most 231 of them and needs a second page for the
# rest, which makes an acquire and release 15 % slower; a page of 4096 bytes means more to write.
_PAGE_SIZE = 2048
# A checkpoint costs three fsyncs, one of them inside a transaction. Our pages are few and small, so a long log is
# cheap: 10 MB between two checkpoints instead of 4.
_CHECKPOINT_PAGES = 5_000

_PROBLEMS = {
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; make both writable, or choose another path",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; does its folder exist, and are both writable?",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; stop the programs that use it and move it away, with -wal and -shm",
    sqlite3.SQLITE_NOTADB: "the file is not a lock file, or damaged; choose another path, or move it away",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_PERM: "permission was denied",
}
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class Busy(Exception):
    """Another process holds the write lock of the file, or the message names another reason to retry."""


class LockFilePort:
    """The part of both ports that depends on no runtime."""

    def __init__(
        self, config: SqliteConfig, runtime: Runtime, wake_own: Callable[[Notification], None] | None = None
    ) -> None:
        """`wake_own` wakes a waiting ticket of this client, on the thread of a transaction."""
        self.wakeups = Wakeups(runtime)
        self._runtime = runtime
        self._file = LockFile(config, wake_own or self.wakeups.wake)
        self.intact = self._file.intact
        self._closed = False

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        return self._file.liveness_fds

    async def _retry_while_busy(self, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Try until no other process holds the file. SQLite's own busy handler sleeps up to 100 ms at a time.

        Raises:
            BackendUnavailable: the deadline has passed; the error names the process that held the file.
        """
        runtime, pause = self._runtime, _RETRY_MIN
        while True:
            try:
                return await attempt()
            except Busy as busy:
                if runtime.now() >= deadline:
                    raise self._file.still_busy(busy) from busy
            await runtime.sleep(pause * (0.5 + runtime.jitter()))
            pause = min(2 * pause, _RETRY_MAX)


class LockFile(system.Forkable):
    """The lock file of one client."""

    _unusable_paths: set[str] = set()  # noqa: RUF012 (of the process: paths that a forked child cannot use)

    def __init__(self, config: SqliteConfig, wake_own: Callable[[Notification], None]) -> None:
        self._path = path = config.path
        self._wake_own = wake_own
        self._url = config.url
        self.sessions_folder = f"{path}-sessions"
        self._mutex = Mutex()
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._store: Hashable = None
        self._is_durable = False  # whether the connection commits durably
        self._identity = file_system.FileIdentity(path)
        self._closed = False
        self._forking: int | None = None  # the thread that forks, while it holds our mutex
        self.session: sessions.Session | None = None
        file_system.check_path(path, is_local=config.is_local)
        system.on_fork(self)

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        session = self.session
        return () if session is None else (session.fd,)

    def attempt(self, step: Callable[[Transaction], T], *, durable: bool = False, creates: bool = True) -> T:
        """Run `step` between BEGIN IMMEDIATE and COMMIT; again, if the file was removed or replaced before the commit.

        A `durable` commit waits until the disk has stored it. Without `creates`, a missing or empty file stays so.

        Raises:
            Busy: another process holds the file; nothing was done.
            StoreMissing: there is no lock file, and `creates` is false.
        """
        self._refuse_reentry()
        with self._mutex:
            for _ in range(_REPLACED_MAX):
                cursor = self._cursor or self._open(creates=creates)
                session = self.session
                if session is None:
                    raise self._unavailable("the client is closed")
                transaction = _Transaction(cursor, self.sessions_folder, session.name, self._store)
                try:
                    if durable is not self._is_durable:
                        transaction.row(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                        self._is_durable = durable
                    cursor.execute("BEGIN IMMEDIATE")
                    transaction.now, transaction.wall = system.now(), time.time()
                    result = step(transaction)
                    if transaction.reading:
                        transaction.end_reading()
                    transaction.is_committing = True
                    cursor.execute("COMMIT")
                except sqlite3.Error as error:
                    self._roll_back(transaction)
                    problem = self._error_of(error, is_committing=transaction.is_committing)
                    if isinstance(problem, Busy) or self.intact(self._store):
                        raise problem from error
                except BaseException:
                    self._roll_back(transaction)
                    raise
                else:
                    if self.intact(self._store):
                        break
                self._disconnect()  # that was a file which is not at the path any more
            else:
                raise OutcomeUnknown(backend=self._url, problem="the file is removed or replaced repeatedly")
        if transaction.after_commit:
            self._after_commit(transaction)
        return result

    def still_busy(self, busy: Busy) -> BackendUnavailable:
        """The error after the last attempt."""
        if str(busy):
            return self._unavailable(str(busy))
        pid = file_system.write_lock_holder(f"{self._path}-shm")
        if pid is None:
            return self._unavailable("other processes kept the file busy all the time")
        return self._unavailable(
            f"process {pid} is in the middle of a transaction on this file; is it stopped? (kill -CONT {pid})"
        )

    def intact(self, store: Hashable) -> bool:
        """The store that granted leases under this identity is still at the path, and our session is still open."""
        if store is None or store != self._store or not self._identity.is_unchanged():
            return False
        session = self.session
        return session is not None and session.is_open()

    def close(self) -> None:
        self._refuse_reentry()
        with self._mutex:
            self._closed = True
            session, self.session = self.session, None
            if session is None:
                return
            # Tickets that could not be released count as those of a dead process, as long as the closed FIFO exists.
            keep = self._has_tickets(session.name)
            self._disconnect()
            if keep:
                session.abandon()
            else:
                session.close()

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────
    #
    # SQLite keeps the locks of a process in its memory. A forked child inherits this memory, but not the locks. It must
    # close the inherited connection before it opens the file itself. That is safe only between transactions, so a fork
    # waits for ours to end.

    def _before_fork(self) -> None:
        if not self._mutex.is_mine() and self._mutex.acquire(timeout=_FORK_WAIT_MAX):
            self._forking = threading.get_ident()

    def _after_fork_in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._mutex.release()

    def abandon(self) -> None:
        """In the child, where our client calls it: drop the inherited session and connection."""
        if self.session is not None:
            self.session.abandon()  # or this process would keep the parent's session alive
        if self._connection is None:
            return
        if self._forking is not None or (not self._mutex.is_mine() and self._mutex.acquire(blocking=False)):
            self._connection.close()
        else:
            # In the middle of a transaction not even closing is safe, so the connection must stay referenced forever.
            # While it exists, SQLite assumes locks that this process does not have, so the path cannot be used.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._unusable_paths.add(self._path)
        self._connection = self._cursor = None

    def __del__(self) -> None:
        """Close the connection of a client that was never closed. Its leases expire; the session closes itself."""
        connection = getattr(self, "_connection", None)
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _refuse_reentry(self) -> None:
        if self._mutex.is_mine():
            raise self._unavailable(
                "a signal handler or a finaliser interrupted a transaction of this client and cannot use it"
            )

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────

    def _after_commit(self, transaction: _Transaction) -> None:
        for session, notification in transaction.after_commit:
            if notification is None:
                sessions.reap(self.sessions_folder, session)
            elif session == transaction.session:
                self._wake_own(notification)
            else:
                sessions.wake(self.sessions_folder, session, notification)

    def _roll_back(self, transaction: _Transaction) -> None:
        try:
            transaction.roll_back()
        except sqlite3.Error:
            # The connection is unusable. Closing it rolls the transaction back too.
            self._disconnect()

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, *, creates: bool) -> sqlite3.Cursor:
        if self._closed:
            raise self._unavailable("the client is closed")
        if self._path in self._unusable_paths:
            raise self._unavailable(
                "this process was forked in the middle of a transaction of its parent and cannot use the same file; "
                "start it with the 'spawn' method, or fork before the parent uses locks"
            )
        connection: sqlite3.Connection | None = None
        before = file_system.inode_of(self._path)
        if before is None and not creates:
            raise self._missing("there is no lock file")
        try:
            if creates:
                file_system.make_folder(os.path.dirname(self._path))
            with self._folder_lock():
                problem = file_system.second_path_problem(self._path)
                if problem is not None:
                    raise self._unavailable(problem)
                if creates:
                    file_system.prepare_new(self._path)
                elif file_system.inode_of(self._path) is None:
                    raise self._missing("there is no lock file")
                connection = sqlite3.connect(
                    self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=64
                )
                store = self._prepare(connection, creates=creates)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                if before is not None and file_system.inode_of(self._path) != before:
                    raise Busy from error  # it was removed while SQLite used it, which can give any error
                raise self._error_of(error) from error
            if isinstance(error, OSError):
                raise self._unavailable(str(error)) from error
            raise
        self._connection, self._store, self._is_durable = connection, store, False
        self._cursor = connection.cursor()
        return self._cursor

    @contextlib.contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """Lock the folder, so that no other process creates the file between our check and our creation."""
        import fcntl  # imported here, because the simulator loads this module on systems without it

        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                problem = "another program holds an flock() on the folder, which is needed to open the file"
                raise Busy(problem) from error
            yield
        finally:
            os.close(folder)

    def _prepare(self, connection: sqlite3.Connection, *, creates: bool) -> Hashable:
        """Set up the file and return its identity, which must be the same as when the connection was opened."""
        before = file_system.inode_of(self._path)
        version = self._version(connection)  # checked before any change
        if not creates and version != SCHEMA_VERSION:
            if version == 0:
                raise self._missing("the file is empty")
            problem = (
                f"the file has the tables of an older holdfast (schema version {version}, this one uses "
                f"{SCHEMA_VERSION}): they are upgraded when a lock is acquired, not by a call that only reads"
            )
            raise OldTables(backend=self._url, problem=problem)
        if version == 0:
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise self._unavailable(
                f"the file system does not allow SQLite's WAL mode (got {mode!r}): choose another path"
            )
        # A power cut ends every holder, so no client misses a commit that it undoes; the clock is the floor of the
        # fence. Registers must survive it, so they are committed as `durable`.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._migrate(connection)
            dead = self._start_session(connection)
            file_id, _ = self._file_row(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the first error is reported; closing rolls back too
                connection.execute("ROLLBACK")
            raise
        for name in dead:
            sessions.reap(self.sessions_folder, name)
        files = self._identity.record()
        if before is None or file_system.inode_of(self._path) != before:
            raise Busy  # it was replaced while we opened it: start again
        # A lease ends with the session that it was granted to, because other processes only see whether that is alive.
        return (files, file_id, self.session and self.session.name)

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of the tables; 0 for an empty file. Raises for a file of another program or a newer holdfast."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        names = tuple(row[0] for row in connection.execute("SELECT name FROM sqlite_schema ORDER BY name"))
        if version == 0 and not names:
            return 0
        if "tickets" not in names:
            raise self._unavailable("this is the SQLite file of another program: give holdfast a separate file")
        if _TABLES.get(version) != names:
            raise self._unavailable(
                f"the file has schema version {version}, this holdfast uses {SCHEMA_VERSION}: "
                "use one version of holdfast for one file"
            )
        return int(version)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file, or upgrade those of an older holdfast."""
        version = self._version(connection)
        if version == SCHEMA_VERSION:
            return
        if version in _UPGRADES:
            self._check_no_old_clients(version)
            for statement in _UPGRADES[version]:
                connection.execute(statement)
        script = text_of("holdfast.backends.sqlite", "sql/schema.sql")
        for statement in script.split(";\n"):
            connection.execute(statement)
        if version == 0:
            connection.execute(INSERT_FILE_ROW, (system.nonce(), file_system.boot_id()))
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _check_no_old_clients(self, version: int) -> None:
        """Refuse the upgrade while older clients run: their forks and restarts could not open the file any more."""
        if os.path.isdir(self.sessions_folder) and sessions.list_sessions(self.sessions_folder).living:
            raise self._unavailable(
                f"programs with an older holdfast use the file (schema version {version}): end them first, then "
                "it is upgraded; or use a separate file for this one"
            )

    def _start_session(self, connection: sqlite3.Connection) -> list[str]:
        """Remove ended tickets, then create our session. Returns the dead sessions, to be reaped after COMMIT."""
        os.makedirs(self.sessions_folder, mode=0o700, exist_ok=True)
        dead, living = sessions.list_sessions(self.sessions_folder)
        boot = file_system.boot_id()
        if self._file_row(connection)[1] != boot:
            if living:
                raise self._unavailable(
                    "it is in use by processes of this machine that see another boot id or clock than this one "
                    "(other containers?): give each side a separate file, or use a store that is made for a network"
                )
            connection.execute("DELETE FROM tickets WHERE name <> ''")
            connection.execute("UPDATE marks SET expires = 0.0")
            connection.execute("UPDATE records SET expires = NULL")
            connection.execute("UPDATE tickets SET session = ? WHERE name = ''", (boot,))
        connection.execute("DELETE FROM tickets WHERE expires <= ?", (system.now(),))
        connection.executemany(REMOVE_SESSION, [(name,) for name in dead])
        if self.session is None or not (self.session.is_open() and self.session.is_in_place()):
            self.session = sessions.Session(self.sessions_folder, system.nonce())
        return dead

    def _file_row(self, connection: sqlite3.Connection) -> tuple[str, str]:
        """The id of the file, and the boot to which its times belong."""
        rows: list[tuple[str, str]] = connection.execute(_FILE_ROW).fetchall()
        if not rows:
            raise self._unavailable(_PROBLEMS[sqlite3.SQLITE_CORRUPT])
        return rows[0]

    def _has_tickets(self, session: str) -> bool:
        if self._connection is None:
            return False
        try:
            row = self._connection.execute("SELECT 1 FROM tickets WHERE session = ? LIMIT 1", (session,)).fetchone()
        except sqlite3.Error:
            return True
        return row is not None

    def _disconnect(self) -> None:
        """Close the connection. The next attempt opens the file that is at the path then."""
        if self._connection is not None:
            connection, self._connection, self._cursor = self._connection, None, None
            connection.close()

    def _error_of(self, error: sqlite3.Error, *, is_committing: bool = False) -> Exception:
        code: int = getattr(error, "sqlite_errorcode", 0)
        primary = code & 0xFF
        if primary in _BUSY:
            return Busy()
        problem = f"{_PROBLEMS[primary]} ({error})" if primary in _PROBLEMS else str(error)
        if is_committing and primary != sqlite3.SQLITE_FULL:
            return OutcomeUnknown(backend=self._url, problem=problem)
        return self._unavailable(problem)

    def _missing(self, problem: str) -> StoreMissing:
        return StoreMissing(backend=self._url, problem=f"{problem} yet: it is created when a lock is acquired")

    def _unavailable(self, problem: str) -> BackendUnavailable:
        return BackendUnavailable(backend=self._url, problem=problem)


class _Transaction:
    """The transaction of a step. Open cursors are closed before COMMIT, so that no read outlives it."""

    __slots__ = ("_cursor", "_folder", "after_commit", "is_committing", "now", "reading", "session", "store", "wall")

    now: float
    wall: float

    def __init__(self, cursor: sqlite3.Cursor, folder: str, session: str, store: Hashable) -> None:
        self._cursor = cursor  # for statements whose rows are read at once
        self.reading: list[sqlite3.Cursor] = []
        self._folder = folder
        self.session = session
        self.store = store
        self.is_committing = False
        # A session, and the notification to send to it, or None to reap it.
        self.after_commit: list[tuple[str, Notification | None]] = []

    def roll_back(self) -> None:
        self.end_reading()
        if self._cursor.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    def end_reading(self) -> None:
        for cursor in self.reading:
            cursor.close()
        self.reading.clear()

    def row(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        rows = self._cursor.execute(sql, values).fetchall()
        return rows[0] if rows else None

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        cursor = self._cursor.connection.execute(sql, values)
        self.reading.append(cursor)
        return cursor

    def change(self, sql: str, *values: Value) -> int:
        return self._cursor.execute(sql, values).rowcount

    def is_dead(self, session: str) -> bool:
        return sessions.is_dead(self._folder, session)

    def reap(self, session: str) -> None:
        self.after_commit.append((session, None))

    def wake(self, session: str, notification: Notification) -> None:
        self.after_commit.append((session, notification))
