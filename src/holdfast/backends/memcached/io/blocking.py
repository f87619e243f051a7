"""memcached for threads: a socket for each exchange that is under way, used again only after a complete one.

Whatever happens between the first byte sent and the last one read, a KeyboardInterrupt included, closes the connection:
nobody ever reads another's reply.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.backends.memcached.config import Node, Place, place_of
from holdfast.backends.memcached.io import errors
from holdfast.backends.memcached.io.handshake import meet
from holdfast.backends.memcached.port import Answer, Errand, Life
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.pool import IDLE_CHECK, ConnectionPool
from holdfast.backends.net.sockets import open_socket
from holdfast.backends.net.stream import NotSent, Stream
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.net.pool import Probe
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

_DONE = Reply("HD")


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    port = SocketPort(place, runtime)
    return MemcachedBackend(place.url, port, runtime, prefix=place.prefix, nodes=place.nodes)


class SocketWire:
    """One connection."""

    __slots__ = ("__weakref__", "_node", "_now", "_parser", "_place", "_stream", "life", "probe", "used_at")

    def __init__(self, place: Place, node: Node, runtime: ThreadRuntime) -> None:
        self._place, self._node, self._now = place, node, runtime.now
        self._stream: Stream | None = None  # None: not open
        self._parser = Parser()
        self.life: Life
        self.used_at = 0.0
        self.probe: Probe | None = None

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    async def open(self, deadline: float) -> None:
        """Connect, be let in, and learn who is there.

        Raises:
            BackendUnavailable: it could not be reached, or did not let us in.
        """
        ends = min(deadline, self._now() + self._place.connect_timeout)
        if ends <= self._now():
            raise errors.not_sent(self._place.url, self._node, "there was no time left to connect")
        try:
            node, tls = self._node, self._place.tls
            self._stream = Stream(await open_socket(node.host, node.port, BlockingPoller(), ends, tls))
            self.life = await meet(self, self._place, self._node, ends)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise errors.not_sent(self._place.url, self._node, f"cannot connect: {error}") from error
            raise

    def one(self, request: bytes, deadline: float, now: float) -> Reply:
        """A whole exchange with one reply: the way that has to be fast."""
        self.used_at = now
        seconds = deadline - now
        if seconds > self._place.io_timeout:
            seconds = self._place.io_timeout
            deadline = now + seconds
        stream = self._stream
        if stream is None or seconds <= 0.0:
            raise self._not_usable()
        try:
            data = stream.exchange(request, seconds, deadline, self.probe)
            self.probe = None
            if data == b"HD\r\n":  # these two are what nearly all answers are
                return _DONE
            if data[:4] == b"HD c" and data[-2:] == b"\r\n" and data[4:-2].isdigit():
                return Reply("HD", int(data[4:-2]))
            self._parser.feed(data)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                # Of a single request that was not sent to its last byte, the server has nothing to execute.
                why = errors.not_sent if isinstance(error, NotSent) else errors.no_answer
                raise why(self._place.url, self._node, errors.reason(error)) from error
            raise
        return self.receive(1, deadline)[0]

    async def exchange(self, requests: bytes, count: int, deadline: float) -> list[Reply]:
        self.send(requests, deadline, is_one=False)
        return self.receive(count, deadline)

    def send(self, requests: bytes, deadline: float, *, is_one: bool) -> None:
        """First half of an exchange."""
        stream, now = self._stream, self._now()
        deadline = min(deadline, now + self._place.io_timeout)
        if stream is None or deadline <= now:
            raise self._not_usable()
        self.used_at = now
        try:
            stream.send(requests, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                # Of a single request that was not sent to its last byte, the server has nothing to execute.
                why = errors.not_sent if is_one else errors.no_answer
                raise why(self._place.url, self._node, f"the request could not be sent: {error}") from error
            raise

    def receive(self, count: int, deadline: float) -> list[Reply]:
        """Second half."""
        deadline = min(deadline, self.used_at + self._place.io_timeout)
        try:
            said = self._read(count, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise errors.no_answer(self._place.url, self._node, errors.reason(error)) from error
            raise
        return said

    def _read(self, count: int, deadline: float) -> list[Reply]:
        parser, stream = self._parser, self._stream
        said: list[Reply] = []
        if stream is None:
            raise ConnectionError("it was closed")
        while True:
            while len(said) < count and (reply := parser.gets()) is not None:
                said.append(reply)
                if reply.ends_connection:
                    self.close()
                    return said
            if len(said) == count:
                break
            parser.feed(stream.read(deadline, self.probe))
            self.probe = None
        if parser.has_more:
            self.close()  # said what nobody has asked for
        return said

    def is_dead(self) -> bool:
        return self._stream is None or self._stream.is_dead()

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def abandon(self) -> None:
        """In a forked child."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abandon()

    def __del__(self) -> None:
        """Dropped by an interrupt, or with a client that was never closed."""
        self.close()

    def _not_usable(self) -> HoldfastError:
        why = "the client is closed" if self._stream is None else "there was no time left to ask"
        return errors.not_sent(self._place.url, self._node, why)


class SocketPort:
    """Connections to some servers, shared by threads."""

    def __init__(self, place: Place, runtime: ThreadRuntime) -> None:
        self._place, self._runtime = place, runtime
        self._now = runtime.now
        self._pools = {
            node: ConnectionPool(
                place.url,
                partial(self._open, node),
                runtime,
                place.max_connections,
                server=str(node),
                idle_check=IDLE_CHECK,
            )
            for node in place.nodes
        }
        self._wires: weakref.WeakSet[SocketWire] = weakref.WeakSet()  # all of them, for a forked child
        self._closed = False

    def at_once(self, node: Node, request: bytes, life: Life, now: float, deadline: float) -> Reply | None:
        pool = self._pools[node]
        wire = pool.get_idle(now)
        if wire is None:
            return None
        try:
            reply = wire.one(request, deadline, now) if wire.life == life else None
        except BaseException as error:
            pool.put_after(wire, error)
            raise
        pool.put(wire)
        return reply

    async def ask(self, errand: Errand, *, deadline: float) -> Answer:
        async def ask(wire: SocketWire) -> Answer:
            if errand.life is not None and errand.life != wire.life:
                return Answer(wire.life, ())
            if len(errand.requests) == 1:
                return Answer(wire.life, [wire.one(errand.requests[0], deadline, self._now())])
            return Answer(wire.life, await wire.exchange(b"".join(errand.requests), len(errand.requests), deadline))

        return await self._pools[errand.node].run(ask, deadline)

    async def ask_each(self, errands: Sequence[Errand], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        answers: dict[int, Answer | HoldfastError] = {}
        taken: list[tuple[int, ConnectionPool[SocketWire], SocketWire]] = []
        # First those to whom we are connected: connecting may take long.
        numbers = sorted(range(len(errands)), key=lambda number: not self._pools[errands[number].node].idle)
        try:
            await self._exchange(errands, numbers, deadline, taken, answers)
        except BaseException:
            for _, pool, wire in taken:
                pool.discard(wire)
            raise
        for number, pool, wire in taken:
            pool.put_after(wire, answers[number])
        return [answers[number] for number in range(len(errands))]

    async def _exchange(
        self,
        errands: Sequence[Errand],
        numbers: Sequence[int],
        deadline: float,
        taken: list[tuple[int, ConnectionPool[SocketWire], SocketWire]],
        answers: dict[int, Answer | HoldfastError],
    ) -> None:
        for number in numbers:
            errand = errands[number]
            pool, now = self._pools[errand.node], self._now()
            try:
                # Who cannot be connected to must leave time to hear what the others say.
                wire = pool.get_idle(now) or await pool.open_or_wait(now + (deadline - now) / 2)
            except HoldfastError as error:
                answers[number] = error
                continue
            taken.append((number, pool, wire))
            if errand.life is not None and errand.life != wire.life:
                answers[number] = Answer(wire.life, ())
                continue
            try:
                wire.send(b"".join(errand.requests), deadline, is_one=len(errand.requests) == 1)
            except HoldfastError as error:
                answers[number] = error
        for number, _, wire in taken:
            if number not in answers:
                try:
                    answers[number] = Answer(wire.life, wire.receive(len(errands[number].requests), deadline))
                except HoldfastError as error:
                    answers[number] = error

    async def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.close()

    def abandon(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.abandon()
        for wire in list(self._wires):
            wire.abandon()

    async def _open(self, node: Node, deadline: float) -> SocketWire:
        if self._closed:
            raise errors.not_sent(self._place.url, node, "the client is closed")
        wire = SocketWire(self._place, node, self._runtime)
        self._wires.add(wire)
        await wire.open(deadline)
        return wire
