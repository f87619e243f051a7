"""Who is there: every client that uses a lock file has a FIFO beside it, and that is all others need of it.

    alive?   opening a FIFO for writing without waiting fails with ENXIO when nobody has it open for reading. The kernel
             closes it when the process dies, however it dies; no pid is involved, so none can be mistaken.
    wake     write the nonce of the waiting ticket into it: 33 bytes, which a pipe takes whole or not at all.
    tell me  who keeps it open for writing is told by the kernel (an error condition on the pipe) when the last reader
             is gone: the death of a holder wakes the next in line at once.

A child that inherits the open FIFO stands in for its parent's life. Where something cannot be told (the FIFO was
removed, permission, too many open files), a session counts as alive: its ttl decides then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

RECORD = 33  # 32 hexadecimal digits and a newline; far below PIPE_BUF, so writes never mix
_READ_MAX = 1000 * RECORD
_NAME = re.compile(r"[0-9a-f]{32}")


class Session:
    """Ours: made while the lock file's write lock is held, so that no reaper takes it for a dead one's."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        try:
            os.mkfifo(self.path, 0o600)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: no FIFO can be made in {folder}") from error
        try:
            # For reading *and* writing: it never sees an end of file when the last writer goes.
            self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            os.unlink(self.path)
            raise
        self._status = os.fstat(self.fd)

    def is_open(self) -> bool:
        """Our own end is: a program that closes descriptors it does not know would make us look dead to others."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False
        return status.st_ino == self._status.st_ino and status.st_dev == self._status.st_dev

    def rings(self) -> list[str]:
        """The nonces written to us since the last look."""
        try:
            data = os.read(self.fd, _READ_MAX)
        except BlockingIOError:
            return []
        return data.decode("ascii", "replace").split()

    def ring_self(self) -> None:
        """Make whoever listens here look up."""
        with contextlib.suppress(BlockingIOError):  # full: it has something to read anyway
            os.write(self.fd, b" " * (RECORD - 1) + b"\n")

    def is_in_place(self) -> bool:
        """Others still find it at its path."""
        try:
            return os.path.samestat(os.stat(self.path), self._status)
        except OSError:
            return False

    def close(self) -> None:
        """Leave: from here on we count as dead, so nothing may be held any more."""
        if self.fd >= 0:
            if self.is_in_place():
                _unlink(self.path)
            self.abandon()

    def abandon(self) -> None:
        """Let go of it without a trace: it is somebody else's life, or nobody's any more."""
        if self.is_open():  # else the number may be somebody else's by now
            os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_status"):
            self.close()
        elif hasattr(self, "fd"):  # an interrupt came between the last two lines of __init__
            os.close(self.fd)
            _unlink(self.path)


def is_dead(folder: str, name: str) -> bool:
    """That session's process has died, for certain."""
    try:
        fd = _open_to_write(folder, name)
    except OSError as error:
        return error.errno == errno.ENXIO and _is_fifo(os.path.join(folder, name))  # a socket gives ENXIO too
    os.close(fd)
    return False


def ring(folder: str, name: str, nonce: str) -> None:
    """Wake that session's ticket, if it can be reached: a hint, behind which its look-again stands."""
    try:
        fd = _open_to_write(folder, name)
    except OSError:
        return
    try:
        os.write(fd, f"{nonce}\n".encode())
    except OSError:  # full: it has plenty of rings to look at; or just died
        return
    finally:
        os.close(fd)


def bury(folder: str, name: str) -> None:
    """Remove what a dead session left."""
    _unlink(os.path.join(folder, name))


class Census(NamedTuple):
    """The sessions in a folder."""

    dead: list[str]
    living: list[str]


def census(folder: str) -> Census:
    """All sessions; call with the lock file's write lock held. Files of other programs are not sessions."""
    found = Census([], [])
    for name in os.listdir(folder):
        if _NAME.fullmatch(name) and _is_fifo(os.path.join(folder, name)):
            (found.dead if is_dead(folder, name) else found.living).append(name)
    return found


class Watch:
    """Which sessions our waiting tickets attend to, each with one open FIFO that the kernel marks at its death."""

    def __init__(
        self,
        folder: str,
        wake: Callable[[str], None],
        add_reader: Callable[[int, Callable[[], None]], object],
        remove_reader: Callable[[int], object],
    ) -> None:
        self._folder = folder
        self._wake = wake
        self._add_reader = add_reader
        self._remove_reader = remove_reader
        self._attended: dict[str, tuple[int, set[str]]] = {}  # session -> its FIFO, our nonces
        self._by_nonce: dict[str, frozenset[str]] = {}

    @property
    def is_idle(self) -> bool:
        """No ticket of ours waits."""
        return not self._by_nonce

    def subscribe(self, nonce: str, sessions: Iterable[str]) -> None:
        wanted = frozenset(sessions)
        before = self._by_nonce.get(nonce, frozenset())
        self._by_nonce[nonce] = wanted
        if wanted != before:
            for session in wanted - before:
                self._begin(nonce, session)
            for session in before - wanted:
                self._end(nonce, session)

    def unsubscribe(self, nonce: str) -> None:
        for session in self._by_nonce.pop(nonce, ()):
            self._end(nonce, session)

    def close(self) -> None:
        for nonce in list(self._by_nonce):
            self.unsubscribe(nonce)

    def abandon(self) -> None:
        """In a forked child: close our copies, and leave the parent's watching as it is."""
        for fd, _ in self._attended.values():
            os.close(fd)

    def _begin(self, nonce: str, session: str) -> None:
        if session in self._attended:
            self._attended[session][1].add(nonce)
            return
        try:
            fd = _open_to_write(self._folder, session)
        except OSError as error:
            if error.errno == errno.ENXIO:
                self._wake(nonce)  # dead already: look again
            return
        self._attended[session] = (fd, {nonce})
        # Nothing can be read from the writing end, so the only thing to come is the error at the reader's death.
        self._add_reader(fd, lambda: self._has_died(session))

    def _end(self, nonce: str, session: str) -> None:
        if session in self._attended:
            fd, nonces = self._attended[session]
            nonces.discard(nonce)
            if not nonces:
                del self._attended[session]
                self._close(fd)

    def _has_died(self, session: str) -> None:
        if session in self._attended:
            fd, nonces = self._attended.pop(session)
            self._close(fd)
            for nonce in sorted(nonces):
                self._wake(nonce)

    def _close(self, fd: int) -> None:
        with contextlib.suppress(KeyError):  # an interrupt came before it was registered
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
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
