"""memcached for threads: a socket for each exchange that is under way, used again only after a complete one.

Whatever happens between the first byte sent and the last one read, a KeyboardInterrupt included, closes the connection:
nobody ever reads another's reply.
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

from holdfast.backends.memcached import replies
from holdfast.backends.memcached.address import Node, Place, place_of
from holdfast.backends.memcached.meeting import meet
from holdfast.backends.memcached.meta import Parser, Reply
from holdfast.backends.memcached.port import Answer, Errand, Life
from holdfast.backends.memcached.protocol import MemcachedBackend
from holdfast.errors import HoldfastError
from holdfast.runtimes.threads import ThreadEvent

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

CONNECTIONS_MAX = 16  # to one server, in use at the same time
_ROOM_LOOK = 0.05  # seconds between looks for a free one, should its bell go unheard
_IDLE_LOOK = 0.2  # seconds unused after which a connection is looked at: the server may have closed it
_STEP = 0.02  # seconds
_LEAST = 0.001  # seconds that a socket waits even if the deadline is over: what has arrived already is read
_READ_SIZE = 65536
_DONE = Reply("HD")


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    port = SocketPort(place, runtime)
    return MemcachedBackend(place.url, port, runtime, prefix=place.prefix, nodes=place.nodes)


class SocketWire:
    """One connection."""

    __slots__ = ("__weakref__", "_node", "_now", "_parser", "_place", "_set", "_usual", "life", "sock", "used_at")

    def __init__(self, place: Place, node: Node, runtime: ThreadRuntime) -> None:
        self._place, self._node, self._now = place, node, runtime.now
        self.sock: socket.socket | None = None  # None: not open
        # A call's deadline is a moment less than io_timeout away when it gets here. With a little less than that as the
        # socket's own timeout, most calls need not set one.
        self._usual = 0.98 * place.io_timeout
        self._set = 0.0  # which timeout the socket has
        self._parser = Parser()
        self.life: Life
        self.used_at = 0.0

    async def open(self, deadline: float) -> None:
        """Connect, be let in, and learn who is there.

        Raises:
            BackendUnavailable: it could not be reached, or did not let us in.
        """
        timeout = min(self._place.connect_timeout, deadline - self._now())
        if timeout <= 0.0:
            raise replies.not_sent(self._place.url, self._node, "there was no time left to connect")
        ends = self._now() + timeout
        try:
            self.sock = socket.create_connection(self._node, timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._place.tls is not None:
                self.sock = self._place.tls.wrap_socket(self.sock, server_hostname=self._node.host)
            self.life = await meet(self, self._place, self._node, ends)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise replies.not_sent(self._place.url, self._node, f"cannot connect: {error}") from error
            raise

    def one(self, request: bytes, deadline: float, now: float) -> Reply:
        """A whole exchange with one reply: the way that has to be fast."""
        sock = self.sock
        if sock is None or self._set != self._usual or deadline - now < self._usual:
            self.send(request, deadline, is_one=True)
            return self.receive(1, deadline)[0]
        self.used_at = now
        sent = False
        try:
            sock.sendall(request)
            sent = True
            data = sock.recv(_READ_SIZE)
            if data == b"HD\r\n":  # these two are what nearly all answers are
                return _DONE
            if data[:4] == b"HD c" and data[-2:] == b"\r\n" and data[4:-2].isdigit():
                return Reply("HD", int(data[4:-2]))
            if not data:
                raise ConnectionError("the server closed it")
            self._parser.feed(data)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                # Of a single request that was not sent to its last byte, the server has nothing to execute.
                why = replies.no_answer if sent else replies.not_sent
                raise why(self._place.url, self._node, replies.reason(error)) from error
            raise
        return self.receive(1, deadline)[0]

    async def exchange(self, requests: bytes, count: int, deadline: float) -> list[Reply]:
        self.send(requests, deadline, is_one=False)
        return self.receive(count, deadline)

    def send(self, requests: bytes, deadline: float, *, is_one: bool) -> None:
        """First half of an exchange."""
        sock, now = self.sock, self._now()
        if sock is None:
            raise replies.not_sent(self._place.url, self._node, "the client is closed")
        if deadline <= now:
            self.close()  # off its stack by now, and of no use to whoever has taken it
            raise replies.not_sent(self._place.url, self._node, "there was no time left to ask")
        self.used_at = now
        try:
            self._wait_at_most(sock, deadline - now)
            sock.sendall(requests)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                # Of a single request that was not sent to its last byte, the server has nothing to execute.
                why = replies.not_sent if is_one else replies.no_answer
                raise why(self._place.url, self._node, f"the request could not be sent: {error}") from error
            raise

    def receive(self, count: int, deadline: float) -> list[Reply]:
        """Second half."""
        parser = self._parser
        said: list[Reply] = []
        try:
            sock = self.sock
            if sock is None:
                raise ConnectionError("it was closed")
            while True:
                while len(said) < count and (reply := parser.gets()) is not None:
                    said.append(reply)
                    if reply.ends_connection:
                        self.close()
                        return said
                if len(said) == count:
                    break
                self._wait_at_most(sock, deadline - self._now())
                data = sock.recv(_READ_SIZE)
                if not data:
                    raise ConnectionError("the server closed it")
                parser.feed(data)
            if parser.has_more:
                self.close()  # said what nobody has asked for
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise replies.no_answer(self._place.url, self._node, replies.reason(error)) from error
            raise
        return said

    def is_dead(self) -> bool:
        """The server has closed it, or said something that nobody asked for."""
        if self.sock is None:
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        sock, self.sock = self.sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def abandon(self) -> None:
        """In a forked child: the descriptor only. The connection itself is the parent's."""
        sock, self.sock = self.sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def __del__(self) -> None:
        """Dropped by an interrupt, or with a client that was never closed."""
        self.close()

    def _wait_at_most(self, sock: socket.socket, seconds: float) -> None:
        # In coarse steps, so that calls that have about the same time need not set it anew each time.
        seconds = max(_LEAST, min(self._usual, seconds if seconds < _STEP else seconds // _STEP * _STEP))
        if seconds == self._set:
            return
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(seconds)
        else:
            # By the kernel: a socket with a timeout of Python's is asked for its readiness before every call.
            sock.settimeout(None)
            timeval = struct.pack("ll", int(seconds), int(seconds % 1.0 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._set = seconds


class _Stack:
    """The connections to one server; the one used last is used next."""

    __slots__ = ("freed", "idle", "is_closed", "waiting", "wires")

    def __init__(self) -> None:
        self.idle: list[SocketWire] = []
        # All of them, weakly: one that an interrupt has dropped does not count any more.
        self.wires: weakref.WeakSet[SocketWire] = weakref.WeakSet()
        self.is_closed = False
        self.waiting = 0
        self.freed = ThreadEvent()

    def take(self, now: float) -> SocketWire | None:
        while True:
            try:
                wire = self.idle.pop()  # one step, whatever other threads do
            except IndexError:
                return None
            if now - wire.used_at < _IDLE_LOOK or not wire.is_dead():
                return wire
            wire.close()

    def give(self, wire: SocketWire) -> None:
        if self.is_closed:
            wire.close()
        elif wire.sock is not None:
            self.idle.append(wire)
        if self.waiting:
            self.freed.set()


class SocketPort:
    """Connections to some servers, shared by threads."""

    def __init__(self, place: Place, runtime: ThreadRuntime) -> None:
        self._place, self._runtime = place, runtime
        self._now = runtime.now
        self._stacks = {node: _Stack() for node in place.nodes}
        self._closed = False

    def at_once(self, node: Node, request: bytes, life: Life, now: float, deadline: float) -> Reply | None:
        stack = self._stacks[node]
        wire = stack.take(now)
        if wire is None:
            return None
        reply = wire.one(request, deadline, now) if wire.life == life else None
        stack.give(wire)
        return reply

    async def ask(self, errand: Errand, *, deadline: float) -> Answer:
        stack = self._stacks[errand.node]
        wire = stack.take(self._now()) or await self._open(errand.node, stack, deadline)
        if errand.life is not None and errand.life != wire.life:
            stack.give(wire)
            return Answer(wire.life, ())
        if len(errand.requests) == 1:
            said = [wire.one(errand.requests[0], deadline, self._now())]
        else:
            said = await wire.exchange(b"".join(errand.requests), len(errand.requests), deadline)
        stack.give(wire)
        return Answer(wire.life, said)

    async def ask_each(self, errands: Sequence[Errand], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        answers: dict[int, Answer | HoldfastError] = {}
        sent: list[tuple[int, _Stack, SocketWire]] = []
        # First those to whom we are connected: connecting may take long.
        numbers = sorted(range(len(errands)), key=lambda number: not self._stacks[errands[number].node].idle)
        for number in numbers:
            errand = errands[number]
            stack, now = self._stacks[errand.node], self._now()
            try:
                # Who cannot be connected to must leave time to hear what the others say.
                wire = stack.take(now) or await self._open(errand.node, stack, now + (deadline - now) / 2)
                if errand.life is not None and errand.life != wire.life:
                    stack.give(wire)
                    answers[number] = Answer(wire.life, ())
                    continue
                wire.send(b"".join(errand.requests), deadline, is_one=len(errand.requests) == 1)
            except HoldfastError as error:
                answers[number] = error
            else:
                sent.append((number, stack, wire))
        for number, stack, wire in sent:
            try:
                answers[number] = Answer(wire.life, wire.receive(len(errands[number].requests), deadline))
            except HoldfastError as error:
                answers[number] = error
            stack.give(wire)
        return [answers[number] for number in range(len(errands))]

    async def close(self) -> None:
        self._closed = True
        for stack in self._stacks.values():
            stack.is_closed = True
            while (wire := stack.take(self._now())) is not None:
                wire.close()

    def abandon(self) -> None:
        self._closed = True
        for stack in self._stacks.values():
            stack.is_closed = True
            for wire in list(stack.wires):
                wire.abandon()
            stack.idle.clear()

    async def _open(self, node: Node, stack: _Stack, deadline: float) -> SocketWire:
        while len(stack.wires) >= CONNECTIONS_MAX:
            free = await self._wait_for_one(node, stack, deadline)
            if free is not None:
                return free
        if self._closed:
            raise replies.not_sent(self._place.url, node, "the client is closed")
        wire = SocketWire(self._place, node, self._runtime)
        stack.wires.add(wire)
        await wire.open(deadline)
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
