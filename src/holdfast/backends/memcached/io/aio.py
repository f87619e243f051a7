"""memcached for asyncio: one connection for each server, shared by all tasks. Replies come in the order of requests.

A task that is cancelled leaves its place in the line: its reply is read all the same, and thrown away. A connection on
which one deadline has passed takes no new requests; those before it may still get their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.backends.memcached.config import Node, Place, place_of
from holdfast.backends.memcached.io import errors
from holdfast.backends.memcached.io.handshake import meet
from holdfast.backends.memcached.port import Answer, Errand, Life
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.net.aio import LoopPoller
from holdfast.backends.net.poller import is_readable
from holdfast.backends.net.sockets import open_socket
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address

_NEVER = float("inf")
_IDLE_LOOK = 0.2  # seconds unused after which a connection is looked at
_READ_SIZE = 65536


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    runtime.waits_for_sockets = True
    place = place_of(address)
    port = PipelinePort(place, runtime)
    return MemcachedBackend(place.url, port, runtime, prefix=place.prefix, nodes=place.nodes)


class _Entry(NamedTuple):
    """Who waits for replies."""

    future: asyncio.Future[list[Reply]]
    deadline: float
    replies: int
    said: list[Reply]


class Pipeline(asyncio.BufferedProtocol):
    """One connection that all tasks share.

    Buffered, because for any other the loop makes room for 256 KiB at each read. The C library may get that from the
    kernel and give it back each time, which takes as long as an exchange.
    """

    def __init__(self, place: Place, node: Node, runtime: AsyncioRuntime) -> None:
        self._place, self._node, self._runtime = place, node, runtime
        self._loop = runtime.loop
        self._parser = Parser()
        self._room = memoryview(bytearray(_READ_SIZE))
        self._transport: asyncio.Transport
        self._pending: deque[_Entry] = deque()
        self._outbox: list[bytes] = []
        self._sweep_at = _NEVER
        self._sweeper: asyncio.TimerHandle | None = None
        self._used_at = runtime.now()
        self.life: Life
        self.is_open = False
        self.is_slow = False  # a deadline has passed on it
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self, timeout: float) -> None:
        """Connect, be let in, and learn who is there.

        Raises:
            BackendUnavailable: it could not be reached, or did not let us in.
        """
        if timeout <= 0.0:
            raise errors.not_sent(self._place.url, self._node, "there was no time left to connect")
        deadline = self._runtime.now() + timeout
        tls = self._place.tls
        name = self._node.host if tls is not None else None
        try:
            sock = await open_socket(self._node.host, self._node.port, LoopPoller(self._runtime), deadline)
            try:
                async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
                    await self._loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=name)
            except BaseException:
                sock.close()
                raise
            self.life = await meet(self, self._place, self._node, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                raise errors.not_sent(self._place.url, self._node, f"cannot connect: {why}") from error
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._broken(f"the connection broke: {exc}" if exc else "the server closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    async def exchange(self, requests: bytes, count: int, deadline: float) -> list[Reply]:
        if not self.is_open:
            raise errors.not_sent(self._place.url, self._node, "the connection was closed")
        deadline = min(deadline, self._runtime.now() + self._place.io_timeout)
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._pending.append(_Entry(future, deadline, count, []))
        if deadline < self._sweep_at:
            self._sweep_later(deadline)
        # Alone, a request goes out at once. In company, it waits until all tasks that are ready now have had their say,
        # and leaves with theirs in one system call.
        if len(self._pending) == 1:
            self._transport.write(requests)
        else:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(requests)
        return await future

    def _flush(self) -> None:
        if self._outbox:
            requests, self._outbox = self._outbox, []
            self._transport.write(b"".join(requests))

    @property
    def is_idle(self) -> bool:
        return not self._pending

    def is_usable(self) -> bool:
        """Open, as far as we know: the loop may not have come to hear of its end, if it was held up since."""
        now = self._runtime.now()
        unused, self._used_at = now - self._used_at, now
        if not self.is_open or self.is_slow:
            return False
        if unused < _IDLE_LOOK or self._pending:
            return True
        # There is no request on it, so all that can have come is the end.
        return not is_readable(self._transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        pending = self._pending
        try:
            self._parser.feed(bytes(self._room[:nbytes]))
            while (reply := self._parser.gets()) is not None:
                future, _, count, said = pending[0]
                said.append(reply)
                if len(said) == count or reply.ends_connection:
                    pending.popleft()
                    if not future.done():
                        future.set_result(said)
                if reply.ends_connection:
                    self.close()
                    return
        except Exception as error:  # no memcached speaks like this, or it answers what nobody has asked
            self._broken(f"its answer makes no sense: {error!r}")
            self.close()
        if self.is_slow and not pending:
            self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()
        self._broken("the connection was closed")

    def abandon(self) -> None:
        """In a forked child: whatever is said on this descriptor from now on goes nowhere.

        It is not closed, because the transport will do that some day, and its number must not be another's by then. Nor
        is the transport, which would unregister it from a selector that is the parent's too.
        """
        if self.is_open:
            self.is_open = False
            nowhere = os.open(os.devnull, os.O_RDWR)
            with contextlib.suppress(OSError):
                os.dup2(nowhere, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(nowhere)

    def _broken(self, why: str) -> None:
        """Nothing more will come."""
        unsent, self._outbox = len(self._outbox), []
        while self._pending:
            future = self._pending.popleft().future
            if not future.done():
                error = errors.no_answer if len(self._pending) >= unsent else errors.not_sent
                future.set_exception(error(self._place.url, self._node, why))
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper, self._sweep_at = None, _NEVER

    def _sweep_later(self, deadline: float) -> None:
        """One timer for all: it is set anew only for somebody who is in more of a hurry than all before."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_at = deadline
        self._sweeper = self._loop.call_later(max(0.0, deadline - self._runtime.now()), self._sweep)

    def _sweep(self) -> None:
        now = self._runtime.now()
        self._sweeper, self._sweep_at = None, _NEVER
        for entry in self._pending:
            if entry.deadline <= now:
                self.is_slow = True
                if not entry.future.done():
                    entry.future.set_exception(errors.no_answer(self._place.url, self._node, "no answer in time"))
        waiting = [entry.deadline for entry in self._pending if not entry.future.done()]
        if waiting:
            self._sweep_later(min(waiting))
        elif self.is_slow:
            self.close()


class PipelinePort:
    """Connections to some servers, shared by the tasks of one loop."""

    def __init__(self, place: Place, runtime: AsyncioRuntime) -> None:
        self._place, self._runtime = place, runtime
        self._shared: dict[Node, Pipeline] = {}
        self._opening: dict[Node, asyncio.Task[Pipeline]] = {}
        self._all: set[Pipeline] = set()
        self._closed = False

    def at_once(self, node: Node, request: bytes, life: Life, now: float, deadline: float) -> Reply | None:
        return None

    async def ask(self, errand: Errand, *, deadline: float) -> Answer:
        if deadline <= self._runtime.now():
            raise errors.not_sent(self._place.url, errand.node, "there was no time left to ask")
        pipeline = self._shared.get(errand.node)
        if pipeline is None or not pipeline.is_usable():
            pipeline = await self._open_shared(errand.node, deadline)
        if errand.life is not None and errand.life != pipeline.life:
            return Answer(pipeline.life, ())
        requests = errand.requests
        packed = requests[0] if len(requests) == 1 else b"".join(requests)
        return Answer(pipeline.life, await pipeline.exchange(packed, len(requests), deadline))

    async def ask_each(self, errands: Sequence[Errand], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        async def ask(errand: Errand) -> Answer | HoldfastError:
            try:
                return await self.ask(errand, deadline=deadline)
            except HoldfastError as error:
                return error

        return await asyncio.gather(*map(ask, errands))

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        everything = list(self._all)
        for pipeline in everything:
            pipeline.close()
        waited_for: list[asyncio.Future[Any]] = [*self._opening.values(), *(one.ended for one in everything)]
        if waited_for:
            await asyncio.wait(waited_for)

    def abandon(self) -> None:
        self._closed = True
        for pipeline in self._all:
            pipeline.abandon()

    async def _open_shared(self, node: Node, deadline: float) -> Pipeline:
        """One task opens it, for all who want it; who is cancelled meanwhile does not cancel that."""
        opening = self._opening.get(node)
        if opening is None:
            if self._closed:
                raise errors.not_sent(self._place.url, node, "the client is closed")
            opening = self._runtime.loop.create_task(self._open(node))
            self._opening[node] = opening
            opening.add_done_callback(lambda task: self._opened(node, task))
        await asyncio.wait((opening,), timeout=max(0.0, deadline - self._runtime.now()))
        if not opening.done():
            raise errors.not_sent(self._place.url, node, "not connected in time")
        if opening.cancelled():
            raise errors.not_sent(self._place.url, node, "the client is closed")
        return opening.result()

    def _opened(self, node: Node, opening: asyncio.Task[Pipeline]) -> None:
        self._opening.pop(node, None)
        if not opening.cancelled() and opening.exception() is None:
            old = self._shared.get(node)
            self._shared[node] = opening.result()
            if old is not None and old.is_idle:
                old.close()

    async def _open(self, node: Node) -> Pipeline:
        pipeline = Pipeline(self._place, node, self._runtime)
        self._all.add(pipeline)
        try:
            await pipeline.open(self._place.connect_timeout)
        except BaseException:
            self._all.discard(pipeline)
            raise
        pipeline.ended.add_done_callback(lambda _: self._all.discard(pipeline))
        return pipeline
