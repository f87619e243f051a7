"""The lock file itself, on the standard library's sqlite3: opening, transactions, and what can go wrong with a file.

For both runtimes: threads call `transact` inline, asyncio calls it on a worker thread. One connection for each client;
its transactions are some 20 µs long, so callers take turns on it.

Nothing here, and nothing else in this process, may ever open the database file by itself: closing such a descriptor
would drop the POSIX locks that SQLite holds on it. Only stat() is used.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from importlib import resources
from typing import Any, TypeVar

from holdfast.backends.sqlite import place, sessions
from holdfast.backends.sqlite.port import Transaction, Value
from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown
from holdfast.runtimes import system

T = TypeVar("T")

SCHEMA_VERSION = 1
_FORK_WAIT_MAX = 1.0  # seconds that a fork waits for our transactions, which take microseconds
_RETRY_MIN, _RETRY_MAX = 0.00005, 0.005  # seconds between two tries for the write lock; transactions are far shorter

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


class LockFile:
    """One lock file as one client uses it."""

    def __init__(self, path: str, url: str, ring_own: Callable[[str], None]) -> None:
        self._path = path
        self._ring_own = ring_own
        self._url = url
        self._folder = f"{path}-sessions"
        self._turn = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._store: Hashable = None
        self._closed = False
        self._is_quiet = False
        self.session: sessions.Session | None = None
        self._session_name = ""
        place.check_path(path)
        system.on_fork(self)

    @property
    def sessions_folder(self) -> str:
        return self._folder

    def transact(self, step: Callable[[Transaction], T], deadline: float) -> T:
        """Run `step` between BEGIN IMMEDIATE and COMMIT; again, if the file was replaced meanwhile."""
        with self._turn:
            result, transaction = self._on_the_right_file(step, deadline)
        for session in transaction.buried:
            sessions.bury(self._folder, session)
        for session, nonce in transaction.rings:
            if session == transaction.session:
                self._ring_own(nonce)
            else:
                sessions.ring(self._folder, session, nonce)
        return result

    def intact(self, store: Hashable) -> bool:
        return store is not None and place.identity(self._path) == store

    def close(self) -> None:
        with self._turn:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self.session is not None:
                self.session.close()
                self.session = None

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────
    #
    # SQLite keeps the locks of a process in that process's memory. A child that inherits this memory, but not the
    # locks, must get rid of it before it opens the file itself, by closing what it inherited. That is safe only
    # between transactions, so a fork waits for ours to end.

    def before_fork(self) -> None:
        self._is_quiet = self._turn.acquire(timeout=_FORK_WAIT_MAX)

    def after_fork_in_parent(self) -> None:
        if self._is_quiet:
            self._is_quiet = False
            self._turn.release()

    def after_fork(self) -> None:
        """In the child; `abandon` is called by our client."""

    def abandon(self) -> None:
        """In the child: let go of what was inherited."""
        if self.session is not None:
            self.session.abandon()  # or our life would stand in for the parent's
        if self._connection is None:
            return
        if self._is_quiet or not self._turn.locked():
            self._connection.close()
        else:
            # In the middle of a transaction, not even closing is safe: it must stay referenced for ever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────

    def _on_the_right_file(self, step: Callable[[Transaction], T], deadline: float) -> tuple[T, _Transaction]:
        """What counts is done in the file that stands at the path when it is done, not in one removed before."""
        while True:
            connection = self._connection or self._open(deadline)
            transaction = _Transaction(connection, self._folder, self._session_name, self._store)
            try:
                result = self._attempt(connection, transaction, step, deadline)
            except BackendError:
                if self.intact(self._store):
                    raise
            else:
                if self.intact(self._store):
                    return result, transaction
            self._reopen()
            if system.now() >= deadline:
                raise OutcomeUnknown(backend=self._url, problem="the file is removed or replaced again and again")

    def _attempt(
        self,
        connection: sqlite3.Connection,
        transaction: _Transaction,
        step: Callable[[Transaction], T],
        deadline: float,
    ) -> T:
        committing = False
        try:
            self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)
            transaction.begin()
            result = step(transaction)
            transaction.end()
            committing = True
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(connection, transaction)
            problem = self._translated(error)
            if committing and _primary(error) not in (*_BUSY, sqlite3.SQLITE_FULL):
                raise OutcomeUnknown(backend=self._url, problem=problem.problem) from error
            raise problem from error
        except BaseException:
            self._roll_back(connection, transaction)
            raise
        return result

    def _roll_back(self, connection: sqlite3.Connection, transaction: _Transaction) -> None:
        transaction.end()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # The connection is of no use any more. Without it the transaction is rolled back all the same.
            self._reopen()

    def _patiently(self, statement: Callable[[], T], deadline: float) -> T:
        """Try until nobody else is in the way. SQLite's own way of waiting sleeps up to 100 ms at a time."""
        pause = _RETRY_MIN
        while True:
            try:
                return statement()
            except sqlite3.OperationalError as error:
                if _primary(error) not in _BUSY:
                    raise
                if system.now() >= deadline:
                    raise BackendUnavailable(backend=self._url, problem=self._who_is_in_the_way()) from error
            time.sleep(pause * (0.5 + system.jitter()))
            pause = min(2 * pause, _RETRY_MAX)

    def _who_is_in_the_way(self) -> str:
        pid = place.write_lock_holder(f"{self._path}-shm")
        if pid is None:
            return "other processes kept the file busy all the time"
        return f"process {pid} stands in the middle of a transaction on this file; is it stopped? (kill -CONT {pid})"

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, deadline: float) -> sqlite3.Connection:
        if self._closed:
            raise BackendUnavailable(backend=self._url, problem="the client is closed")
        try:
            place.make_folder(os.path.dirname(self._path))
            connection = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=64
            )
        except sqlite3.Error as error:
            raise self._translated(error) from error
        except OSError as error:
            raise BackendUnavailable(backend=self._url, problem=str(error)) from error
        try:
            self._prepare(connection, deadline)
        except sqlite3.Error as error:
            connection.close()
            raise self._translated(error) from error
        except OSError as error:
            connection.close()
            raise BackendUnavailable(backend=self._url, problem=str(error)) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._store = place.identity(self._path)
        return connection

    def _prepare(self, connection: sqlite3.Connection, deadline: float) -> None:
        mode = self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], deadline)
        if mode != "wal":
            raise BackendUnavailable(
                backend=self._url,
                problem=f"the file system does not allow SQLite's WAL mode (got {mode!r}): choose another path",
            )
        # A power cut ends every holder, so a commit that it undoes is missed by nobody; the fence has its time floor.
        connection.execute("PRAGMA synchronous = NORMAL")
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)
        try:
            self._create_or_check(connection)
            self._move_in(connection)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _create_or_check(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise BackendUnavailable(
                    backend=self._url, problem="this is somebody else's SQLite file: give holdfast a file of its own"
                )
            script = resources.files(__package__).joinpath("schema.sql").read_text()
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO state VALUES (1, ?, 0)", (place.boot_id(),))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise BackendUnavailable(
                backend=self._url,
                problem=f"the file has schema version {version}, this holdfast speaks {SCHEMA_VERSION}: "
                "use one version of holdfast for one file",
            )

    def _move_in(self, connection: sqlite3.Connection) -> None:
        """Sweep out what is over, then put our session beside the file. The write lock is held."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        dead = sessions.dead_in(self._folder)
        boot = place.boot_id()
        if connection.execute("SELECT boot FROM state").fetchone()[0] != boot:
            if len(dead) < len(os.listdir(self._folder)):
                raise BackendUnavailable(
                    backend=self._url,
                    problem="it is in use by processes of this machine that see another boot id or clock than this one "
                    "(other containers?): give each side a file of its own, or use a store that is made for a network",
                )
            connection.execute("DELETE FROM tickets")
            connection.execute("UPDATE state SET boot = ?", (boot,))
        connection.execute("DELETE FROM tickets WHERE expires <= ?", (system.now(),))
        for name in dead:
            connection.execute("DELETE FROM tickets WHERE session = ?", (name,))
            sessions.bury(self._folder, name)
        if self.session is None or not self.session.is_in_place():
            self._session_name = system.nonce()
            self.session = sessions.Session(self._folder, self._session_name)

    def _reopen(self) -> None:
        """The file at the path is another one now, or the connection is broken: begin again with what is there."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def _translated(self, error: sqlite3.Error) -> BackendError:
        problem = _PROBLEMS.get(_primary(error))
        detail = f"{problem} ({error})" if problem else str(error)
        return BackendUnavailable(backend=self._url, problem=detail)


class _Transaction:
    """What a step sees; open cursors are closed before COMMIT, so that no read outlives its transaction."""

    def __init__(self, connection: sqlite3.Connection, folder: str, session: str, store: Hashable) -> None:
        self._connection = connection
        self._folder = folder
        self._cursors: list[sqlite3.Cursor] = []
        self.session = session
        self.store = store
        self.now = 0.0
        self.wall = 0.0
        self.rings: list[tuple[str, str]] = []
        self.buried: list[str] = []

    def begin(self) -> None:
        self.now, self.wall = system.now(), time.time()

    def end(self) -> None:
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()

    def rows(self, sql: str, *values: Value) -> Iterator[tuple[Any, ...]]:
        cursor = self._connection.execute(sql, values)
        self._cursors.append(cursor)
        return cursor

    def change(self, sql: str, *values: Value) -> int:
        return self._connection.execute(sql, values).rowcount

    def is_dead(self, session: str) -> bool:
        return sessions.is_dead(self._folder, session)

    def bury(self, session: str) -> None:
        self.buried.append(session)

    def ring(self, session: str, nonce: str) -> None:
        self.rings.append((session, nonce))


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
