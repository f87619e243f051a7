"""The subscriber connection for threads. Its listener reads it, or the only waiting thread does.

If the listener receives a notification, it has to wake the waiting thread, which doubles the latency. So a thread that
is the only waiter reads the connection itself. With several waiters the listener reads, and wakes each one.

    listener reads ◀──── a second thread waits ───┐
       │   ▲                                      │
       │   └── after LINGER ── no reader ◀── notified, or its time is up
     start_waiting                 │              │
       └───────────────▶ the waiting thread reads ◀ (it usually waits again within LINGER)

The connection has no reader only while no thread waits. An interrupt in the middle of a step does not block the
connection: the reader is a weak reference, and a notification that arrives late does no harm, because every waiter also
polls.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.net.errors import no_answer
from holdfast.backends.net.poller import READ, new_poll
from holdfast.backends.net.stream import send_all
from holdfast.backends.net.waker import Waker
from holdfast.backends.redis.io.resp import Parser, single_message
from holdfast.core.handovers import notification_of
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.runtimes.threads import ThreadEvent, ThreadRuntime

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.port import Reply
    from holdfast.core.tickets import Notification
    from holdfast.url_parts import Node

LINGER = 0.5  # seconds that the listener waits for the last reader to return
_SEND_MAX = 1.0  # seconds for a few bytes
_READ_SIZE = 65536


class SocketSubscriberConnection:
    """One connection, and a waker for each of its two possible readers: the listener and a waiting thread."""

    def __init__(self, sock: socket.socket, node: Node, config: RedisConfig, runtime: ThreadRuntime) -> None:
        self._sock, self._node, self._config, self._now = sock, node, config, runtime.now
        self._parser = Parser()
        self._reader_waker = Waker()
        self._waker = Waker()  # wakes the listener, which then returns from `receive` or checks which thread reads
        self._is_woken = False  # the listener has to return
        self._mutex = runtime.mutex()
        self._listener_reads = False
        # The waiting thread that reads instead of the listener, and the one that will as soon as the listener stops.
        self._reader: Callable[[], SubscriberEvent | None] = _no_event
        self._candidate: Callable[[], SubscriberEvent | None] = _no_event
        self._waiting: weakref.WeakSet[SubscriberEvent] = weakref.WeakSet()
        self._read_at = -math.inf  # when a waiting thread last read
        self._passed_on: list[Reply] = []  # messages for the listener that a waiting thread has read
        self._error: HoldfastError | None = None  # that ended the reading
        # Two threads must not use one TLS connection at the same time, and the listener sends on it.
        self._is_shared = not isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0)
        self._poll = new_poll((sock, READ), (self._waker, READ))
        self._waker_poll = new_poll((self._waker, READ))
        self._reader_poll = new_poll((sock, READ), (self._reader_waker, READ))
        self._reader_waker_poll = new_poll((self._reader_waker, READ))
        self.is_closed = False

    # ── for the listener ─────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        try:
            # Without settimeout, which would also apply to the thread that reads.
            send_all(self._sock, data, self._now() + _SEND_MAX)
        except OSError as error:
            raise self._broken(error) from error

    async def receive(self, until: float) -> list[Reply]:
        while True:
            with self._mutex:
                passed_on, self._passed_on = self._passed_on, []
                self._yield_to_candidate()
                now = self._now()
                has_reader = self._reader() is not None or (not self._waiting and now < self._read_at + LINGER)
                self._listener_reads = not (has_reader or passed_on or self._error)
            if passed_on:
                return passed_on
            if self._error is not None:
                raise self._error
            messages = self._read_until(until) if self._listener_reads else self._wait_for_reader(until)
            if messages is not None:
                return messages

    def event(self, notify: Callable[[Notification], None]) -> SubscriberEvent | None:
        return SubscriberEvent(self, notify) if self._is_shared else None

    def wake(self) -> None:
        self._is_woken = True
        self._waker.wake()

    def close(self) -> None:
        self.is_closed = True
        self._reader_waker.wake()
        with contextlib.suppress(OSError):
            self._sock.close()
        self._waker.close()
        with self._mutex:
            self._close_unused()

    def abandon(self) -> None:
        """In a forked child: close the descriptors only."""
        self._waker.abandon()
        self._reader_waker.abandon()
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def __del__(self) -> None:
        for name in ("_reader_waker", "_waker"):  # left by an interrupt in stop_waiting, or by a failure in __init__
            if (waker := getattr(self, name, None)) is not None:
                waker.close()

    def _close_unused(self) -> None:
        """Close the readers' waker when the last waiter has left, because waiters poll it."""
        if self.is_closed and not self._waiting:
            self._reader_waker.close()

    def _yield_to_candidate(self) -> None:
        if self._candidate() is not None:
            self._reader, self._candidate = self._candidate, _no_event
            self._reader_waker.wake()

    def _must_return(self) -> bool:
        """Called when the listener's waker is readable. Returns whether `wake` was called."""
        self._waker.drain()
        if self._is_woken:  # otherwise not cleared, because a concurrent `wake` may set it after this check
            self._is_woken = False
            return True
        return False

    def _read_until(self, until: float) -> list[Reply] | None:
        """The next messages; an empty list at `until` or after `wake`; None if another thread may have to read."""
        while True:
            if data := self._received():
                messages = self._parsed(data)
                if messages:
                    return messages
                continue
            left = until - self._now()
            if left <= 0.0:
                return []
            for descriptor, _ in self._poll.poll(left * 1000):
                if descriptor == self._waker.fileno():
                    return [] if self._must_return() else None

    def _wait_for_reader(self, until: float) -> list[Reply] | None:
        """While another thread reads or may return: an empty list at `until` or after `wake`; None to check again."""
        now = self._now()
        if now >= until:
            return []
        if self._waker_poll.poll(min(until - now, LINGER) * 1000) and self._must_return():
            return []
        return None

    # ── for waiting threads ──────────────────────────────────────────────────────────────────────────────────────

    def start_waiting(self, event: SubscriberEvent) -> bool:
        """Register a waiter until `stop_waiting`. Returns whether it has to read the connection."""
        with self._mutex:
            self._waiting.add(event)
            if len(self._waiting) > 1 or self._error is not None or self.is_closed:
                return False
            if not self._listener_reads:
                self._reader = weakref.ref(event)
                return True
            self._candidate = weakref.ref(event)
        self._waker.wake()
        return True

    def read(self, event: SubscriberEvent, until: float, notify: Callable[[Notification], None]) -> None:
        """Read until the event is set. Other messages and errors are passed on to the listener."""
        try:
            self._read(event, until, notify)
        except HoldfastError as error:
            self._error = error
        except BaseException:
            # A message may have been read in part, so the listener reconnects, and all waiters poll.
            self._error = no_answer(self._config.url, self._node, "interrupted while it was subscribed")
            raise

    def _read(self, event: SubscriberEvent, until: float, notify: Callable[[Notification], None]) -> None:
        while not (event.is_set() or self.is_closed or self._error is not None):
            is_my_turn = self._reader() is event
            if is_my_turn and (data := self._received()):
                if not self._parser.has_data() and (payload := single_message(data)):
                    notify(notification_of(payload))  # the usual case
                    continue
                for reply in self._parsed(data):
                    self._pass_on(reply, notify)
                continue
            left = until - self._now()
            if left <= 0.0:
                return
            for descriptor, _ in (self._reader_poll if is_my_turn else self._reader_waker_poll).poll(left * 1000):
                if descriptor == self._reader_waker.fileno():
                    self._reader_waker.drain()

    def stop_waiting(self, event: SubscriberEvent) -> None:
        with self._mutex:
            self._waiting.discard(event)
            if self._candidate() is event:
                self._candidate = _no_event
            if self._reader() is event:
                self._reader, self._read_at = _no_event, self._now()
            self._close_unused()
            is_needed = not self._listener_reads and (self._passed_on or self._error or self._waiting)
        if is_needed:
            self._waker.wake()

    def is_reader(self, event: SubscriberEvent) -> bool:
        return self._reader() is event or self._candidate() is event

    def wake_reader(self) -> None:
        self._reader_waker.wake()

    def _pass_on(self, reply: Reply, notify: Callable[[Notification], None]) -> None:
        match reply:
            case [b"message" | b"smessage", _, bytes(payload)]:
                notify(notification_of(payload))
            case _:
                with self._mutex:
                    self._passed_on.append(reply)
                self._waker.wake()

    # ── for both ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _received(self) -> bytes:
        """The bytes that have arrived, if any. Call it before polling: TLS may have buffered data already."""
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise no_answer(self._config.url, self._node, "the server closed the subscriber connection")
        return data

    def _parsed(self, data: bytes) -> list[Reply]:
        messages = []
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                messages.append(reply)
        except Exception as error:  # each parser has its own exceptions
            problem = f"its message cannot be parsed: {error!r}"
            raise no_answer(self._config.url, self._node, problem) from error
        return messages

    def _broken(self, error: OSError) -> OutcomeUnknown:
        return no_answer(self._config.url, self._node, f"the subscriber connection broke: {error}")


class SubscriberEvent(ThreadEvent):
    """A thread's event for its notification. If no other thread waits, this one reads the connection while it waits."""

    __slots__ = ("__weakref__", "_connection", "_notify", "_thread")

    def __init__(self, connection: SocketSubscriberConnection, notify: Callable[[Notification], None]) -> None:
        super().__init__()
        self._connection = connection
        self._notify = notify
        self._thread = 0  # id of the waiting thread

    def set(self) -> None:
        super().set()
        if self._thread != threading.get_ident() and self._connection.is_reader(self):
            self._connection.wake_reader()

    async def wait(self, until: float | None) -> bool:
        connection = self._connection
        if until is None or self._is_set:
            return await super().wait(until)
        self._thread = threading.get_ident()
        try:
            if connection.start_waiting(self):
                connection.read(self, until, self._notify)
                return self.is_set()
            return await super().wait(until)
        finally:
            connection.stop_waiting(self)


def _no_event() -> None:
    """Stands for a weak reference whose event is gone."""
