"""Connections for threads: a socket each, on which one exchange at a time is done by whoever took it.

A connection is used again only after a complete exchange. Whatever happens between the first byte sent and the last one
read, a KeyboardInterrupt included, closes it: nobody ever reads another's reply.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis import connection as redis_connection
from redis.retry import Retry

from holdfast.backends.redis import driver, replies
from holdfast.backends.redis.resp import Parser, new_parser
from holdfast.backends.redis.wire import NOT_AT_ONCE, Meet, Parcel
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError
from holdfast.runtimes.threads import ThreadEvent

if TYPE_CHECKING:
    from holdfast.backends.redis.address import Login, Node, Place
    from holdfast.backends.redis.port import Reply
    from holdfast.core.ports import Runtime

CONNECTIONS_MAX = 16  # to one server, in use at the same time
_ROOM_LOOK = 0.05  # seconds between looks for a free one, should its bell go unheard
_IDLE_LOOK = 0.2  # seconds unused after which a connection is looked at: the server may have closed it
_STEP = 0.02  # seconds
_LEAST = 0.001  # seconds that a socket waits even if the deadline is over: what has arrived already is read
_READ_SIZE = 16384
_CLOSED = "the server closed the connection"
_PARSER = driver.plain_errors(redis_connection.DefaultParser)


def connect(place: Place, login: Login, node: Node, *, db: int, timeout: float) -> socket.socket:
    """A socket to a server that has let us in.

    Raises:
        BackendUnavailable: it could not be reached, or did not let us in.
    """
    arguments = driver.arguments(login, node, db=db, timeout=timeout, retry=Retry)
    try:
        connection = driver.kind_of(redis_connection, login, node)(**arguments, parser_class=_PARSER)
        connection.connect()
    except driver.FAILURES as error:
        raise replies.not_connected(error, place.url, node) from error
    return driver.take_socket(connection)


def set_timeout(sock: socket.socket, seconds: float) -> None:
    """How long one call on the socket may take.

    By the kernel where that is possible: a socket with a timeout of Python's is asked for its readiness before every
    call, which doubles the number of system calls. TLS in Python knows no other way.
    """
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(seconds)
        return
    sock.settimeout(None)
    whole = int(seconds)
    timeval = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


class SocketWire:
    """One connection."""

    __slots__ = ("__weakref__", "_node", "_now", "_parser", "_set", "_sock", "_url", "_usual", "used_at")

    def __init__(self, place: Place, node: Node, runtime: Runtime) -> None:
        self._url, self._node, self._now = place.url, node, runtime.now
        # A call's deadline is a moment less than io_timeout away when it gets here. With a little less than that as the
        # socket's own timeout, most calls need not set one.
        self._usual = 0.98 * place.io_timeout
        self._set = 0.0  # which timeout the socket has
        self._sock: socket.socket | None = None
        self._parser: Parser = new_parser()
        self.used_at = 0.0

    def plug_in(self, sock: socket.socket) -> None:
        self._sock, self.used_at = sock, self._now()

    def unplug(self) -> socket.socket:
        """The socket, for somebody who has another use for it."""
        sock, self._sock = self._sock, None
        if sock is None:
            raise replies.not_sent(self._url, self._node, "the client is closed")
        return sock

    def one(self, request: bytes, deadline: float, now: float) -> Reply:
        """One exchange with one reply."""
        self.used_at = now
        sock = self._sock
        if sock is None or self._set != self._usual or deadline - now < self._usual:
            sock = self._ready(deadline)
        sent = False
        try:
            sock.sendall(request)
            sent = True
            data = sock.recv(_READ_SIZE)
            if not data:
                raise ConnectionError(_CLOSED)
            if data[:1] == b":" and data[-2:] == b"\r\n":
                return int(data[1:])  # a whole number and nothing else, as most answers are
            parser = self._parser
            parser.feed(data)
            reply = parser.gets()
            while reply is False:
                self._wait_at_most(sock, deadline - self._now())
                parser.feed(self._received(sock))
                reply = parser.gets()
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # Of a single command that was not sent to its last byte, the server has nothing to execute.
            raise (self._no_answer(error) if sent else self._not_sent(error)) from error
        return reply

    async def ask(self, request: bytes, count: int, deadline: float) -> list[Reply]:
        self.send(request, deadline)
        return self.receive(count, deadline)

    def send(self, request: bytes, deadline: float) -> None:
        """First half of an exchange with several replies."""
        sock = self._ready(deadline)
        try:
            sock.sendall(request)
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise self._no_answer(error) from error

    def receive(self, count: int, deadline: float) -> list[Reply]:
        """Second half."""
        said: list[Reply] = []
        try:
            sock = self._sock
            if sock is None:
                raise ConnectionError("the connection was closed")
            while len(said) < count:
                reply = self._parser.gets()
                if reply is False:
                    self._wait_at_most(sock, deadline - self._now())
                    self._parser.feed(self._received(sock))
                else:
                    said.append(reply)
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise self._no_answer(error) from error
        return said

    def is_dead(self) -> bool:
        """The server has closed it, or said something that nobody asked for."""
        sock = self._sock
        if sock is None:
            return True
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def abandon(self) -> None:
        """In a forked child: the descriptor only. The connection itself is the parent's."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def __del__(self) -> None:
        """Dropped by an interrupt, or with a client that was never closed."""
        self.close()

    def _ready(self, deadline: float) -> socket.socket:
        sock = self._sock
        if sock is None:
            raise replies.not_sent(self._url, self._node, "the client is closed")
        now = self._now()
        if deadline <= now:
            self.close()  # off its stack by now, and of no use to whoever has taken it
            raise replies.not_sent(self._url, self._node, "there was no time left to ask")
        self.used_at = now
        self._wait_at_most(sock, deadline - now)
        return sock

    def _wait_at_most(self, sock: socket.socket, seconds: float) -> None:
        # In coarse steps, so that calls that have about the same time need not set it anew each time.
        seconds = max(_LEAST, min(self._usual, seconds if seconds < _STEP else seconds // _STEP * _STEP))
        if seconds != self._set:
            set_timeout(sock, seconds)
            self._set = seconds

    def _received(self, sock: socket.socket) -> bytes:
        data = sock.recv(_READ_SIZE)
        if not data:
            raise ConnectionError(_CLOSED)
        return data

    def _not_sent(self, error: BaseException) -> BackendUnavailable:
        return replies.not_sent(self._url, self._node, f"the request could not be sent: {error}")

    def _no_answer(self, error: BaseException) -> BackendError:
        return replies.no_answer(self._url, self._node, _why(error))


class _Stack:
    """The connections to one server; the one used last is used next."""

    __slots__ = ("freed", "idle", "is_dropped", "waiting", "wires")

    def __init__(self) -> None:
        self.idle: list[SocketWire] = []
        # All of them, weakly: one that an interrupt has dropped does not count any more.
        self.wires: weakref.WeakSet[SocketWire] = weakref.WeakSet()
        self.is_dropped = False
        self.waiting = 0
        self.freed = ThreadEvent()

    def take(self, now: float) -> SocketWire | None:
        while True:
            try:
                wire = self.idle.pop()
            except IndexError:
                return None
            if now - wire.used_at < _IDLE_LOOK or not wire.is_dead():
                return wire
            wire.close()

    def give(self, wire: SocketWire) -> None:
        if self.is_dropped:
            wire.close()
            return
        self.idle.append(wire)
        if self.waiting:
            self.freed.set()


class SocketLines:
    """Connections to servers that let us in the same way, shared by threads."""

    def __init__(self, place: Place, login: Login, db: int, runtime: Runtime, meet: Meet | None) -> None:
        self._place, self._login, self._db, self._runtime, self._meet = place, login, db, runtime, meet
        self._now = runtime.now
        self._stacks: dict[Node, _Stack] = {}
        self._closed = False

    def at_once(self, node: Node, request: bytes, deadline: float) -> Reply:
        stack = self._stacks.get(node)
        if stack is None:
            return NOT_AT_ONCE
        try:
            wire = stack.idle.pop()  # one step, whatever other threads do
        except IndexError:
            return NOT_AT_ONCE
        now = self._now()
        if now - wire.used_at > _IDLE_LOOK and wire.is_dead():
            wire.close()
            return NOT_AT_ONCE
        reply = wire.one(request, deadline, now)
        if stack.is_dropped or stack.waiting:
            stack.give(wire)
        else:
            stack.idle.append(wire)
        return reply

    async def one(self, node: Node, request: bytes, deadline: float) -> Reply:
        stack = self._stack(node)
        now = self._now()
        wire = stack.take(now) or await self._open(node, stack, deadline)
        reply = wire.one(request, deadline, now)
        stack.give(wire)
        return reply

    async def many(self, parcel: Parcel, deadline: float, *, alone: bool = False) -> list[Reply]:
        stack = self._stack(parcel.node)
        wire = stack.take(self._now()) or await self._open(parcel.node, stack, deadline)
        said = await wire.ask(parcel.request, parcel.count, deadline)
        stack.give(wire)
        return said

    async def each(
        self, parcels: Sequence[Parcel], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        answers: list[list[Reply] | HoldfastError] = [[] for _ in parcels]
        sent: list[tuple[int, _Stack, SocketWire]] = []
        # First those to whom we are connected: connecting may take long.
        numbers = sorted(range(len(parcels)), key=lambda number: not self._stack(parcels[number].node).idle)
        for number in numbers:
            parcel = parcels[number]
            stack = self._stack(parcel.node)
            now = self._now()
            try:
                # Who cannot be connected to must leave time to hear what the others say.
                wire = stack.take(now) or await self._open(parcel.node, stack, now + (deadline - now) / 2)
                wire.send(parcel.request, deadline)
            except HoldfastError as error:
                answers[number] = error
            else:
                sent.append((number, stack, wire))
        for number, stack, wire in sent:
            try:
                answers[number] = wire.receive(parcels[number].count, deadline)
            except HoldfastError as error:
                answers[number] = error
            else:
                stack.give(wire)
        return answers

    def drop(self, node: Node) -> None:
        stack = self._stacks.pop(node, None)
        if stack is not None:
            stack.is_dropped = True
            while stack.idle:
                with contextlib.suppress(IndexError):
                    stack.idle.pop().close()

    async def close(self) -> None:
        self._closed = True
        for node in list(self._stacks):
            self.drop(node)

    def abandon(self) -> None:
        self._closed = True
        for stack in list(self._stacks.values()):
            stack.is_dropped = True
            for wire in list(stack.wires):
                wire.abandon()
            stack.idle.clear()

    def _stack(self, node: Node) -> _Stack:
        return self._stacks.get(node) or self._stacks.setdefault(node, _Stack())

    async def _open(self, node: Node, stack: _Stack, deadline: float) -> SocketWire:
        while len(stack.wires) >= CONNECTIONS_MAX:
            wire = await self._wait_for_one(node, stack, deadline)
            if wire is not None:
                return wire
        if self._closed:
            raise replies.not_sent(self._place.url, node, "the client is closed")
        wire = SocketWire(self._place, node, self._runtime)
        stack.wires.add(wire)
        timeout = min(self._place.connect_timeout, deadline - self._now())
        if timeout <= 0.0:
            raise replies.not_sent(self._place.url, node, "there was no time left to connect")
        login, db = self._place.logins.get(node, (self._login, self._db))
        wire.plug_in(connect(self._place, login, node, db=db, timeout=timeout))
        if self._meet is not None:
            try:
                await self._meet(wire, node, deadline)
            except BaseException as error:
                wire.close()
                if isinstance(error, BackendError):  # nothing of what the caller wants was sent yet
                    raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
                raise
        return wire

    async def _wait_for_one(self, node: Node, stack: _Stack, deadline: float) -> SocketWire | None:
        now = self._now()
        if now >= deadline:
            raise replies.not_sent(self._place.url, node, f"all {CONNECTIONS_MAX} connections were in use all the time")
        stack.waiting += 1
        try:
            stack.freed.clear()
            wire = stack.take(now)
            if wire is None:
                await stack.freed.wait(min(deadline, now + _ROOM_LOOK))
                wire = stack.take(self._now())
        finally:
            stack.waiting -= 1
        return wire


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no answer in time"
    return f"the connection broke before the answer came: {str(error) or type(error).__name__}"
