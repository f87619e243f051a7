"""Sessions: every client of a lock file has a FIFO beside it, through which other clients detect its death and wake it.

    alive?   opening a FIFO for writing without blocking fails with ENXIO if no process has it open for reading. The
             kernel closes it when the process dies, for any reason. No pid is involved, so none can be reused.
    wake     write the nonce of the waiting ticket into the FIFO, and its fence if it was granted: one line of RECORD
             bytes, which a pipe accepts as a whole or not.
    watch    a process that has the FIFO open for writing gets an error condition on it from the kernel when the last
             reader is gone. So the death of a holder wakes the first waiter at once.

A child that inherits the open FIFO keeps its parent's session alive. A session whose state cannot be determined (the
FIFO was removed, permission, too many open files) counts as alive; then its ttl decides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from holdfast.core.handovers import notification_of
from holdfast.core.tickets import Notification

RECORD = 64  # a nonce, a fence, spaces and a newline; far below PIPE_BUF, so writes never mix
_READ_MAX = 1000 * RECORD
_NAME = re.compile(r"[0-9a-f]{32}")

AddReader: TypeAlias = Callable[[int, Callable[[], None]], object]
RemoveReader: TypeAlias = Callable[[int], object]


class Session:
    """The session of this client. It is made under the lock file's write lock, so that no client reaps it half-made."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        try:
            os.mkfifo(self.path, 0o600)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: no FIFO can be made in {folder}") from error
        try:
            # For reading *and* writing, so that it sees no end of file when the last writer closes it.
            self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            os.unlink(self.path)
            raise
        self._status = os.fstat(self.fd)

    def is_open(self) -> bool:
        """Our descriptor is open. If the program closes it, other processes take this client for dead."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False
        return status.st_ino == self._status.st_ino and status.st_dev == self._status.st_dev

    def listen(self, add_reader: AddReader, remove_reader: RemoveReader, callback: Callable[[], None]) -> bool:
        """Call back when there is something to read. Returns False if another program has closed our descriptor.

        The next transaction then makes a new session, and its ticket subscribes again.
        """
        if not self.is_open():
            return False
        try:
            add_reader(self.fd, callback)
        except OSError:  # it was closed since
            return False
        if self.is_open():
            return True
        remove_reader(self.fd)  # another file has the number
        return False

    def read_notifications(self) -> list[Notification]:
        """The notifications that were written since the last call."""
        try:
            data = os.read(self.fd, _READ_MAX)
        except BlockingIOError:
            return []
        return [notification_of(line) for record in data.splitlines() if (line := record.strip())]

    def wake_self(self) -> None:
        """Wake the thread that reads this FIFO."""
        with contextlib.suppress(BlockingIOError):  # it is full, so there is something to read
            os.write(self.fd, b" " * (RECORD - 1) + b"\n")

    def is_in_place(self) -> bool:
        """The FIFO is still at its path."""
        try:
            return os.path.samestat(os.stat(self.path), self._status)
        except OSError:
            return False

    def close(self) -> None:
        """End the session. From now on it counts as dead, so no lease may be held any more."""
        if self.fd >= 0:
            if self.is_in_place():
                _unlink(self.path)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor only: the session is the parent process's, or its FIFO must stay as proof of its end."""
        if self.is_open():  # otherwise the number may belong to another file
            os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_status"):
            self.close()
        elif hasattr(self, "fd"):  # an interrupt between the last two lines of __init__
            os.close(self.fd)
            _unlink(self.path)


def is_dead(folder: str, name: str) -> bool:
    """The process of this session has certainly died."""
    try:
        fd = _open_to_write(folder, name)
    except OSError as error:
        return error.errno == errno.ENXIO and _is_fifo(os.path.join(folder, name))  # a socket gives ENXIO too
    os.close(fd)
    return False


def wake(folder: str, name: str, notification: Notification) -> None:
    """Wake a ticket of this session, if possible. It is only a hint: waiters also poll."""
    nonce, fence = notification.nonce, notification.fence
    line = f"{nonce} {fence}" if fence else nonce
    try:
        fd = _open_to_write(folder, name)
        try:
            os.write(fd, f"{line:<{RECORD - 1}}\n".encode())
        finally:
            os.close(fd)
    except OSError:  # it has died, or is full of unread wake-ups
        return


def reap(folder: str, name: str) -> None:
    """Remove the FIFO of a dead session."""
    _unlink(os.path.join(folder, name))


class SessionList(NamedTuple):
    """The sessions in a folder."""

    dead: list[str]
    living: list[str]


def list_sessions(folder: str) -> SessionList:
    """All sessions; call with the lock file's write lock held. Files of other programs are not sessions."""
    sessions = SessionList([], [])
    for name in os.listdir(folder):
        if _NAME.fullmatch(name) and _is_fifo(os.path.join(folder, name)):
            (sessions.dead if is_dead(folder, name) else sessions.living).append(name)
    return sessions


class SessionWatcher:
    """Watches sessions for our waiting tickets, through one open FIFO per session, and reads our own FIFO."""

    def __init__(
        self,
        folder: str,
        wake: Callable[[Notification], None],
        add_reader: AddReader,
        remove_reader: RemoveReader,
    ) -> None:
        self._folder = folder
        self._wake = wake
        self._add_reader = add_reader
        self._remove_reader = remove_reader
        self.listening_to: Session | None = None  # our session, whose FIFO is read
        self._watched: dict[str, tuple[int, set[str]]] = {}  # by session: its FIFO, our nonces
        self._by_nonce: dict[str, frozenset[str]] = {}

    @property
    def is_idle(self) -> bool:
        """No ticket of ours waits."""
        return not self._by_nonce

    def _listen(self, session: Session | None) -> None:
        """Pass on the notifications to our session from now on."""
        if session is not None and session is not self.listening_to:
            listens = session.listen(self._add_reader, self._remove_reader, lambda: self._read_notifications(session))
            self.listening_to = session if listens else None

    def _read_notifications(self, session: Session) -> None:
        for notification in session.read_notifications():
            self._wake(notification)

    def subscribe(self, nonce: str, sessions: Iterable[str], own: Session | None) -> None:
        """Wake this ticket when one of these sessions dies, or when it is notified through our `own` session.

        `own` is None before the first transaction.
        """
        wanted = frozenset(sessions)
        before = self._by_nonce.get(nonce, frozenset())
        self._by_nonce[nonce] = wanted
        if wanted != before:
            for session in wanted - before:
                self._add(nonce, session)
            for session in before - wanted:
                self._remove(nonce, session)
        self._listen(own)

    def unsubscribe(self, nonce: str) -> None:
        for session in self._by_nonce.pop(nonce, ()):
            self._remove(nonce, session)

    def close(self) -> None:
        for nonce in list(self._by_nonce):
            self.unsubscribe(nonce)

    def abandon(self) -> None:
        """In a forked child: close our copies of the descriptors. The parent keeps watching."""
        for fd, _ in self._watched.values():
            os.close(fd)

    def _add(self, nonce: str, session: str) -> None:
        if session in self._watched:
            self._watched[session][1].add(nonce)
            return
        try:
            fd = _open_to_write(self._folder, session)
        except OSError as error:
            if error.errno == errno.ENXIO:
                self._wake(Notification(nonce))  # it is dead already
            return
        self._watched[session] = (fd, {nonce})
        # The writing end is never readable, so the only event is the error when the last reader has gone.
        self._add_reader(fd, lambda: self._on_death(session))

    def _remove(self, nonce: str, session: str) -> None:
        if session in self._watched:
            fd, nonces = self._watched[session]
            nonces.discard(nonce)
            if not nonces:
                del self._watched[session]
                self._close(fd)

    def _on_death(self, session: str) -> None:
        if session in self._watched:
            fd, nonces = self._watched.pop(session)
            self._close(fd)
            for nonce in sorted(nonces):
                self._wake(Notification(nonce))

    def _close(self, fd: int) -> None:
        with contextlib.suppress(KeyError):  # an interrupt before it was registered
            self._remove_reader(fd)
        os.close(fd)


def _open_to_write(folder: str, name: str) -> int:
    return os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.lstat(path).st_mode)
    except OSError:
        return False


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
