"""One non-blocking socket, read and written by threads. Every wait ends at its deadline.

A blocking socket with SO_RCVTIMEO needs one system call less per answer, but every signal restarts its timeout (PEP 475
repeats recv()), and gevent's sockets ignore it. poll() continues with the time that is left, also inside of recv() on a
socket with a timeout.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.net.poller import READ, WRITE, is_readable, new_poll
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.backends.net.pool import Probe

READ_SIZE = 16384
CLOSED = "the server closed the connection"


class NotSent(OSError):
    """The kernel did not accept all of the request."""


class Stream:
    """One socket. Its user closes it after any exception, so that no request reads the answer to an earlier one."""

    __slots__ = ("_receiver", "_sock", "is_plain", "poll", "receive", "recv", "send_some")

    def __init__(self, sock: socket.socket, *, receive_timeout: float | None = None) -> None:
        """With `receive_timeout` and without TLS, `receive` is `recv` with that timeout, else None.

        It waits and reads in one call. It belongs to a second descriptor, because with a timeout `send` would poll too.
        """
        sock.setblocking(False)  # noqa: FBT003 (its name says it)
        self._sock = sock
        self.is_plain = not isinstance(sock, ssl.SSLSocket)
        # Bound once, because every request uses them.
        self.poll, self.send_some, self.recv = new_poll((sock, READ)).poll, sock.send, sock.recv
        self._receiver: socket.socket | None = None
        self.receive: Callable[[int], bytes] | None = None
        if receive_timeout is not None and self.is_plain:
            with contextlib.suppress(OSError):  # too few descriptors: poll() and recv() do the same
                self._receiver = sock.dup()
                self._receiver.settimeout(receive_timeout)
                self.receive = self._receiver.recv

    def exchange(self, request: bytes, seconds: float, until: float, probe: Probe | None) -> bytes:
        """Send a request and read the first part of its answer.

        `seconds` is the time left until `until`, which the caller knows from its last clock read. `probe` is the one of
        the connection (pool.py).

        Raises:
            NotSent: not all of the request was sent.
            OSError: no answer arrived.
        """
        if not self.is_plain:
            self.send(request, until)
            return self.read(until, probe)
        try:
            sent = self.send_some(request)
        except OSError:
            sent = 0
        if sent < len(request):
            self.send(request[sent:], until)
        if not self.poll(seconds * (1000 if probe is None else 500)):
            if probe is None:
                raise TimeoutError("no answer in time")
            return self.read(run_sync(probe(until)))
        try:
            data = self.recv(READ_SIZE)
        except BlockingIOError:  # poll() can report a socket as readable although it is not
            return self.read(until)
        if not data:
            raise ConnectionError(CLOSED)
        return data

    def send(self, data: bytes, until: float) -> None:
        """Send all data. Raises NotSent."""
        try:
            send_all(self._sock, data, until)
        except OSError as error:
            raise NotSent(*error.args) from error

    def read(self, until: float, probe: Probe | None = None) -> bytes:
        """Read at least one byte. Data that has arrived is returned even if the deadline has passed. Raises OSError."""
        if probe is not None:
            now = system.now()
            try:
                return self.read(now + (until - now) / 2)
            except TimeoutError:
                until = run_sync(probe(until))
        while True:
            events = READ
            try:
                data = self._sock.recv(READ_SIZE)
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLWantWriteError:
                events = WRITE
            else:
                if not data:
                    raise ConnectionError(CLOSED)
                return data
            _wait(self._sock, events, until)

    def is_dead(self) -> bool:
        """The server has closed it, or has sent data without a request."""
        return is_readable(self._sock)

    def detach(self) -> socket.socket:
        """Return the socket for another use. This stream must not be used any more."""
        if self._receiver is not None:
            self._receiver.close()
        return self._sock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._receiver is not None:
                self._receiver.close()
        with contextlib.suppress(OSError):
            self._sock.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only. The connection belongs to the parent."""
        for sock in (self._sock, self._receiver):
            if sock is not None:
                with contextlib.suppress(OSError):
                    os.close(sock.detach())


class StreamConnection:
    """Base of the connections of a pool (pool.py) that use a `Stream`. A subclass opens it and exchanges on it."""

    __slots__ = ("__weakref__", "probe", "stream", "used_at")

    def __init__(self) -> None:
        self.stream: Stream | None = None  # None: not open
        self.used_at = 0.0
        self.probe: Probe | None = None

    @property
    def is_open(self) -> bool:
        return self.stream is not None

    def is_dead(self) -> bool:
        return self.stream is None or self.stream.is_dead()

    def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.abandon()

    def __del__(self) -> None:
        """Close a connection that an interrupt dropped, or whose client was never closed."""
        self.close()


def send_all(sock: socket.socket, data: bytes, until: float) -> None:
    """Send all data on a non-blocking socket. Raises OSError."""
    left = memoryview(data)
    while left:
        events = WRITE
        try:
            left = left[sock.send(left) :]
            continue
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLWantReadError:
            events = READ
        _wait(sock, events, until)


def _wait(sock: socket.socket, events: int, until: float) -> None:
    if not new_poll((sock, events)).poll(max(0.0, until - system.now()) * 1000):
        raise TimeoutError("no answer in time")
