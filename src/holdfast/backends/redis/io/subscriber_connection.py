"""Hearing hints on threads: a connection that its listener reads, or in its place a thread that waits for a hint.

A hint that comes to the listener wakes that thread, which wakes the one that waits: twice the time to get going. So a
thread that waits alone reads the connection itself. Where several wait, the listener reads, and wakes each in its turn.

    listener reads ◀──────others wait by now──────┐
       │   ▲                                      │
       │   └── LINGER over ── nobody reads ◀── hinted, or its time is up
     step_in                      │               │
       └───────────────▶ one who waits reads ◀────┘ (it mostly comes back before that)

Nobody reads only while nobody waits. A step that an interrupt cuts off heals by itself: who reads is known by a weak
reference, and what comes late is a hint that comes late, for which whoever waits looks again anyway.
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

from holdfast.backends.net.poller import READ, Poll, new_poll
from holdfast.backends.net.stream import send_all
from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.resp import lone_message, new_parser
from holdfast.errors import HoldfastError
from holdfast.runtimes.threads import ThreadEvent

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, RedisConfig
    from holdfast.backends.redis.port import Reply
    from holdfast.errors import OutcomeUnknown
    from holdfast.runtimes.threads import ThreadRuntime

LINGER = 0.5  # seconds for which the listener leaves it to who has read last to come back
_SEND_MAX = 1.0  # seconds for a few bytes
_READ_SIZE = 65536
_RING, _LOOK = b"!", b"."  # on the listener's bell: somebody rings; something has changed in who reads


class SocketSubscriberConnection:
    """One connection, and a bell for each of the two who may read it."""

    def __init__(self, sock: socket.socket, node: Node, config: RedisConfig, runtime: ThreadRuntime) -> None:
        self._sock, self._node, self._config, self._now = sock, node, config, runtime.now
        self._parser = new_parser()
        self._bell, self._heard_bell, self._reader_bell, self._reader_heard_bell = _bells()  # the listener's first
        self._mutex = runtime.mutex()
        self._listener_reads = False
        self._reader: weakref.ref[SubscriberEvent] = _NONE  # who reads in the listener's place
        self._candidate: weakref.ref[SubscriberEvent] = _NONE  # who will, as soon as the listener makes room
        self._waiting: weakref.WeakSet[SubscriberEvent] = weakref.WeakSet()
        self._read_at = -math.inf  # when one of them last did
        self._passed_on: list[Reply] = []  # what it has read that is not a hint
        self._error: HoldfastError | None = None  # what has ended its reading
        # Two threads must not touch one TLS connection, and it is the listener who sends.
        self._is_shared = not isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0)
        self._poll = _poll(sock, self._heard_bell)
        self._poll_bell = _poll(self._heard_bell)
        self._reader_poll = _poll(sock, self._reader_heard_bell)
        self._reader_poll_bell = _poll(self._reader_heard_bell)
        self.is_closed = False

    # ── for the listener ─────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        try:
            # Without a timeout of its own, which the thread that reads meanwhile would get too.
            send_all(self._sock, data, self._now() + _SEND_MAX)
        except OSError as error:
            raise self._broken(error) from error

    async def receive(self, until: float) -> list[Reply]:
        while True:
            with self._mutex:
                passed_on, self._passed_on = self._passed_on, []
                self._yield_to_candidate()
                now = self._now()
                is_away = self._reader() is not None or (not self._waiting and now < self._read_at + LINGER)
                self._listener_reads = not (is_away or passed_on or self._error)
            if passed_on:
                return passed_on
            if self._error is not None:
                raise self._error
            said = self._read_until(until) if self._listener_reads else self._wait_for_reader(until)
            if said is not None:
                return said

    def event(self, notify: Callable[[str], None]) -> SubscriberEvent | None:
        return SubscriberEvent(self, notify) if self._is_shared else None

    def wake(self) -> None:
        _ring(self._bell, _RING)

    def close(self) -> None:
        self.is_closed = True
        _ring(self._reader_bell, _LOOK)
        for one in (self._sock, self._bell, self._heard_bell):
            with contextlib.suppress(OSError):
                one.close()
        with self._mutex:
            self._close_unused()

    def abandon(self) -> None:
        """In a forked child: the descriptors only."""
        for one in (self._sock, self._bell, self._heard_bell, self._reader_bell, self._reader_heard_bell):
            with contextlib.suppress(OSError):
                os.close(one.detach())

    def __del__(self) -> None:
        for name in ("_reader_bell", "_reader_heard_bell"):  # of one that was interrupted as it stepped out, or made
            if (one := getattr(self, name, None)) is not None:
                one.close()

    def _close_unused(self) -> None:
        """The readers' bell goes with the last who may be waiting for it, not before."""
        if self.is_closed and not self._waiting:
            for one in (self._reader_bell, self._reader_heard_bell):
                one.close()

    def _yield_to_candidate(self) -> None:
        if self._candidate() is not None:
            self._reader, self._candidate = self._candidate, _NONE
            _ring(self._reader_bell, _LOOK)

    def _read_until(self, until: float) -> list[Reply] | None:
        """What came; nothing at `until` or at a ring; None if something has changed in who reads."""
        while True:
            if data := self._received():
                said = self._parsed(data)
                if said:
                    return said
                continue
            left = until - self._now()
            if left <= 0.0:
                return []
            for descriptor, _ in self._poll.poll(left * 1000):
                if descriptor == self._heard_bell.fileno():
                    return [] if _RING in _heard(self._heard_bell) else None

    def _wait_for_reader(self, until: float) -> list[Reply] | None:
        """While somebody else reads, or is about to come back: nothing at `until` or at a ring, None now and then."""
        now = self._now()
        if now >= until:
            return []
        if self._poll_bell.poll(min(until - now, LINGER) * 1000) and _RING in _heard(self._heard_bell):
            return []
        return None

    # ── for those who wait ───────────────────────────────────────────────────────────────────────────────────────

    def start_waiting(self, event: SubscriberEvent) -> bool:
        """Count this one as waiting until it steps out. Whether it is the one to read."""
        with self._mutex:
            self._waiting.add(event)
            if len(self._waiting) > 1 or self._error is not None or self.is_closed:
                return False
            if not self._listener_reads:
                self._reader = weakref.ref(event)
                return True
            self._candidate = weakref.ref(event)
        _ring(self._bell, _LOOK)
        return True

    def read(self, event: SubscriberEvent, until: float, notify: Callable[[str], None]) -> None:
        """Until the event is set. What is not a hint is left to the listener, and so is what goes wrong."""
        try:
            self._read(event, until, notify)
        except HoldfastError as error:
            self._error = error
        except BaseException:
            # What came may be lost half-way: the listener begins anew, and whoever waits looks again.
            self._error = errors.no_answer(self._config.url, self._node, "interrupted while we listened")
            raise

    def _read(self, event: SubscriberEvent, until: float, notify: Callable[[str], None]) -> None:
        while not (event.is_set() or self.is_closed or self._error is not None):
            is_my_turn = self._reader() is event
            if is_my_turn and (data := self._received()):
                if not self._parser.has_data() and (said := lone_message(data)):
                    notify(said.decode(errors="replace"))  # as nearly always
                    continue
                for reply in self._parsed(data):
                    self._pass_on(reply, notify)
                continue
            left = until - self._now()
            if left <= 0.0:
                return
            bell = self._reader_heard_bell
            for descriptor, _ in (self._reader_poll if is_my_turn else self._reader_poll_bell).poll(left * 1000):
                if descriptor == bell.fileno():
                    _heard(bell)

    def stop_waiting(self, event: SubscriberEvent) -> None:
        with self._mutex:
            self._waiting.discard(event)
            if self._candidate() is event:
                self._candidate = _NONE
            if self._reader() is event:
                self._reader, self._read_at = _NONE, self._now()
            self._close_unused()
            is_needed = not self._listener_reads and (self._passed_on or self._error or self._waiting)
        if is_needed:
            _ring(self._bell, _LOOK)

    def is_reader(self, event: SubscriberEvent) -> bool:
        return self._reader() is event or self._candidate() is event

    def wake_reader(self) -> None:
        _ring(self._reader_bell, _LOOK)

    def _pass_on(self, reply: Reply, notify: Callable[[str], None]) -> None:
        match reply:
            case [b"message" | b"smessage", _, bytes(said)]:
                notify(said.decode(errors="replace"))
            case _:
                with self._mutex:
                    self._passed_on.append(reply)
                _ring(self._bell, _LOOK)

    # ── for both ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _received(self) -> bytes:
        """What has come, if anything. Asked before waiting: TLS may have read ahead of what it hands out."""
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise errors.no_answer(self._config.url, self._node, "the server closed the connection while we listened")
        return data

    def _parsed(self, data: bytes) -> list[Reply]:
        said = []
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                said.append(reply)
        except Exception as error:  # a parser has errors of its own
            problem = f"what it said makes no sense while we listened: {error!r}"
            raise errors.no_answer(self._config.url, self._node, problem) from error
        return said

    def _broken(self, error: OSError) -> OutcomeUnknown:
        return errors.no_answer(self._config.url, self._node, f"the connection broke while we listened: {error}")


class SubscriberEvent(ThreadEvent):
    """What a thread waits on for its hint: if nobody else waits, it reads the connection itself meanwhile."""

    __slots__ = ("__weakref__", "_connection", "_notify", "_thread")

    def __init__(self, connection: SocketSubscriberConnection, notify: Callable[[str], None]) -> None:
        super().__init__()
        self._connection = connection
        self._notify = notify
        self._thread = 0  # the thread that waits

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


class _Nobody:
    __slots__ = ("__weakref__",)


_NONE: weakref.ref[SubscriberEvent] = weakref.ref(_Nobody())  # type: ignore[arg-type]  # dead from the start


def _bell() -> tuple[socket.socket, socket.socket]:
    """One to ring it by, and one to hear it on."""
    ringing, hearing = socket.socketpair()
    ringing.settimeout(0)
    hearing.settimeout(0)
    return ringing, hearing


def _bells() -> tuple[socket.socket, socket.socket, socket.socket, socket.socket]:
    """Two of them; none if there are too few descriptors for both."""
    first = _bell()
    try:
        return *first, *_bell()
    except BaseException:
        for end in first:
            end.close()
        raise


def _ring(bell: socket.socket, how: bytes) -> None:
    with contextlib.suppress(OSError):  # closed, or full of rings that nobody has answered yet
        bell.send(how)


def _heard(bell: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return bell.recv(_READ_SIZE)
    return b""


def _poll(*socks: socket.socket) -> Poll:
    return new_poll(*((sock, READ) for sock in socks))
