"""One socket, read and written by threads. Every wait ends at its deadline, with one exception.

Most answers arrive within a millisecond. `Stream.receive` waits for them in recv() itself, on a blocking socket with
SO_RCVTIMEO, which takes one system call less than poll() and recv(). After that time, poll() waits for the rest.

The exception: every signal restarts the wait in recv(), because Python repeats the call (PEP 475). The wait takes at
most two ticks of the kernel, so only signals that arrive more often, as those of a fast profiler, prolong it, while the
server sends nothing. After a signal, poll() continues with the time that is left.

With TLS, data can be left in a buffer of OpenSSL; the sockets of gevent and eventlet ignore SO_RCVTIMEO; and a kernel
with long ticks would wait too long: there, the socket does not block, and all waits are in poll().
"""

from __future__ import annotations

import _socket
import contextlib
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.net.poller import READ, WRITE, is_readable, new_poll
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.backends.net.pool import Probe

READ_SIZE = 16384
RECEIVE_TIME = 0.004  # seconds; recv() waits for up to two ticks of the kernel
_CLOCK_MONOTONIC_COARSE = 6  # on Linux; its resolution is a tick, of 1 to 10 ms
CLOSED = "the server closed the connection"


def _flag_without_wait() -> int:
    """MSG_DONTWAIT on a system where SO_RCVTIMEO can limit recv() to RECEIVE_TIME; 0 on others."""
    if sys.platform != "linux" or time.clock_getres(_CLOCK_MONOTONIC_COARSE) > RECEIVE_TIME:
        return 0
    flag: int = getattr(socket, "MSG_DONTWAIT", 0)
    return flag


_NO_WAIT = _flag_without_wait()


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
        self.flags = 0  # of every call except `receive`, so that it does not block
        # Raises BlockingIOError if nothing arrives in RECEIVE_TIME. None: this socket cannot do that.
        self.receive: Callable[[int], bytes] | None = None
        # gevent and eventlet replace socket.socket, but not its base class.
        if self.is_plain and _NO_WAIT and isinstance(sock, _socket.socket):
            timeout = struct.pack("@ll", 0, round(RECEIVE_TIME * 1_000_000))
            with contextlib.suppress(OSError):  # on a 32-bit system, the option may expect two numbers of 64 bits
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
                self.flags, self.receive = _NO_WAIT, sock.recv
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
        wait = seconds if probe is None else seconds / 2
        data = self.receive_until(until - seconds + wait, wait, READ_SIZE)
        if data is None:
            return self.read(until if probe is None else run_sync(probe(until)))
        if not data:
            raise ConnectionError(CLOSED)
        return data

    def receive_until(self, until: float, seconds: float, size: int) -> bytes | None:
        """Data of a plain connection, b"" at its end, or None if nothing arrives by then. Raises OSError.

        `seconds` is the time left until then, which the caller knows from its last clock read.
        """
        if self.receive is not None and seconds > 2 * RECEIVE_TIME:
            with contextlib.suppress(BlockingIOError):
                return self.receive(size)
            seconds = until - system.now()
        return self.poll_within(seconds, size)

    def poll_within(self, seconds: float, size: int) -> bytes | None:
        """As `receive_until`, for an answer that needs more than RECEIVE_TIME."""
        if self.poll(max(0.0, seconds) * 1000):  # a negative time would have no end
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


def send_all(sock: socket.socket, data: bytes, until: float, flags: int = 0) -> None:
    """Send all data on a socket that does not block with these flags. Raises OSError."""
    unsent = memoryview(data)
    while unsent:
        events = WRITE
        try:
            unsent = unsent[sock.send(unsent, flags) :]
            continue
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLWantReadError:
            events = READ
        _wait(sock, events, until)


def _wait(sock: socket.socket, events: int, until: float) -> None:
    if not new_poll((sock, events)).poll(max(0.0, until - system.now()) * 1000):
        raise TimeoutError("no answer in time")
