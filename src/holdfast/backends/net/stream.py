"""One socket, read and written by threads. Every wait ends at its deadline.

Most answers arrive within a millisecond. `Stream.receive` waits for them in recv() itself, on a blocking socket with
SO_RCVTIMEO, which takes one system call less than poll() and recv(). Every signal restarts that timeout (PEP 475
repeats recv()), so it is shorter than the time between two signals of a profiler. After it, poll() waits for the rest
of the time; it continues with what is left after a signal. With TLS, data can be left in a buffer of OpenSSL, and the
sockets of gevent and eventlet ignore SO_RCVTIMEO: these sockets do not block, and all waits are in poll().
"""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.net.poller import READ, WRITE, is_readable, new_poll
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.backends.net.pool import Probe

READ_SIZE = 16384
RECEIVE_TIME = 0.004  # seconds; the kernel rounds it up to its ticks, of 1 to 10 ms
CLOSED = "the server closed the connection"


class NotSent(OSError):
    """The kernel did not accept all of the request."""


class Stream:
    """One socket. Its user closes it after any exception, so that no request reads the answer to an earlier one."""

    __slots__ = ("_sock", "flags", "is_plain", "poll", "receive", "recv", "send_some")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.is_plain = not isinstance(sock, ssl.SSLSocket)
        # Bound once, because every request uses them.
        self.poll, self.send_some, self.recv = new_poll((sock, READ)).poll, sock.send, sock.recv
        self.flags = 0  # of all calls but `receive`: they do not block
        # Raises BlockingIOError if nothing arrives in RECEIVE_TIME. None: this socket cannot do that.
        self.receive: Callable[[int], bytes] | None = None
        no_wait: int = getattr(socket, "MSG_DONTWAIT", 0) if sys.platform == "linux" else 0
        # gevent and eventlet replace socket.socket, but not its base class.
        if self.is_plain and no_wait and isinstance(sock, _socket.socket):
            timeout = struct.pack("@ll", 0, round(RECEIVE_TIME * 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            self.flags, self.receive = no_wait, sock.recv
        sock.setblocking(self.receive is not None)

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
            sent = self.send_some(request, self.flags)
        except OSError:
            sent = 0
        if sent < len(request):
            self.send(request[sent:], until)
        data = self.receive_within(seconds if probe is None else seconds / 2, READ_SIZE)
        if data is None:
            return self.read(until if probe is None else run_sync(probe(until)))
        if not data:
            raise ConnectionError(CLOSED)
        return data

    def receive_within(self, seconds: float, size: int) -> bytes | None:
        """Data of a plain connection, b"" at its end, or None if nothing arrives in this time. Raises OSError."""
        if self.receive is not None and seconds > 2 * RECEIVE_TIME:
            with contextlib.suppress(BlockingIOError):
                return self.receive(size)
            seconds -= RECEIVE_TIME
        return self.poll_within(seconds, size)

    def poll_within(self, seconds: float, size: int) -> bytes | None:
        """As `receive_within`, for an answer that needs more than RECEIVE_TIME."""
        if self.poll(seconds * 1000):
            with contextlib.suppress(BlockingIOError):  # poll() can report a socket as readable although it is not
                return self.recv(size, self.flags)
        return None

    def send(self, data: bytes, until: float) -> None:
        """Send all data. Raises NotSent."""
        try:
            send_all(self._sock, data, until, self.flags)
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
                data = self.recv(READ_SIZE, self.flags)
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
        """Return the socket, non-blocking, for another use. This stream must not be used any more."""
        self._sock.setblocking(False)  # noqa: FBT003 (its name says it)
        return self._sock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptor only. The connection belongs to the parent."""
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())


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


def send_all(sock: socket.socket, data: bytes, until: float, flags: int = 0) -> None:
    """Send all data on a socket that does not block with these flags. Raises OSError."""
    left = memoryview(data)
    while left:
        events = WRITE
        try:
            left = left[sock.send(left, flags) :]
            continue
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLWantReadError:
            events = READ
        _wait(sock, events, until)


def _wait(sock: socket.socket, events: int, until: float) -> None:
    if not new_poll((sock, events)).poll(max(0.0, until - system.now()) * 1000):
        raise TimeoutError("no answer in time")
