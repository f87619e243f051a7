"""memcached for asyncio: one connection per server, shared by all tasks. Replies arrive in the order of the requests.

The reply to a cancelled task is read and discarded. A connection on which a deadline has passed accepts no new
requests; requests that were sent before may still get their replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.backends.memcached.config import MemcachedConfig, config_of
from holdfast.backends.memcached.io.handshake import handshake
from holdfast.backends.memcached.port import Answer, Batch, ServerRun
from holdfast.backends.memcached.protocol import errors
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.net.aio import LoopPoller
from holdfast.backends.net.poller import is_readable
from holdfast.backends.net.pool import IDLE_CHECK
from holdfast.backends.net.sockets import open_socket
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address

_NEVER = float("inf")
_READ_SIZE = 65536


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    runtime.waits_for_sockets = True
    config = config_of(address)
    port = PipelinePort(config, runtime)
    return MemcachedBackend(config.url, port, runtime, prefix=config.prefix, nodes=config.nodes)


class _Exchange(NamedTuple):
    """An exchange whose replies are not complete."""

    future: asyncio.Future[list[Reply]]
    deadline: float
    expected: int
    replies: list[Reply]


class Pipeline(asyncio.BufferedProtocol):
    """One connection that all tasks share.

    It is a BufferedProtocol, because for any other protocol the loop allocates 256 KiB at each read. The C library may
    get that memory from the kernel and return it each time, which takes as long as an exchange.
    """

    def __init__(self, config: MemcachedConfig, node: Node, runtime: AsyncioRuntime) -> None:
        self._config, self._node, self._runtime = config, node, runtime
        self._loop = runtime.loop
        self._parser = Parser()
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._transport: asyncio.Transport
        self._pending: deque[_Exchange] = deque()
        self._outbox: list[bytes] = []
        self._timer_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._used_at = runtime.now()
        self.run: ServerRun
        self.is_open = False
        self.is_slow = False  # a deadline has passed on it
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self, timeout: float) -> None:
        """Connect, log in and identify the server run.

        Raises:
            BackendUnavailable: the server could not be reached, or refused the login.
        """
        if timeout <= 0.0:
            raise errors.not_sent(self._config.url, self._node, "there was no time left to connect")
        deadline = self._runtime.now() + timeout
        tls = self._config.tls
        name = self._node.host if tls is not None else None
        try:
            sock = await open_socket(self._node.host, self._node.port, LoopPoller(self._runtime), deadline)
            try:
                async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
                    await self._loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=name)
            except BaseException:
                sock.close()
                raise
            self.run = await handshake(self, self._config, self._node, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                raise errors.not_sent(self._config.url, self._node, f"cannot connect: {why}") from error
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail_pending(f"the connection broke: {exc}" if exc else "the server closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    async def exchange(self, requests: bytes, count: int, deadline: float) -> list[Reply]:
        if not self.is_open:
            raise errors.not_sent(self._config.url, self._node, "the connection was closed")
        deadline = min(deadline, self._runtime.now() + self._config.io_timeout)
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._pending.append(_Exchange(future, deadline, count, []))
        if deadline < self._timer_at:
            self._arm_timer(deadline)
        # A single request is sent at once. Otherwise it waits until all tasks that are ready now have run, and is sent
        # together with their requests in one system call.
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
        """Whether it can take a request. It checks the socket, because a blocked loop may not have seen its end yet."""
        now = self._runtime.now()
        unused, self._used_at = now - self._used_at, now
        if not self.is_open or self.is_slow:
            return False
        if unused < IDLE_CHECK or self._pending:
            return True
        # No request is pending, so readable means that the server has closed the connection.
        return not is_readable(self._transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        pending = self._pending
        try:
            self._parser.feed(bytes(self._buffer[:nbytes]))
            while (reply := self._parser.next_reply()) is not None:
                future, _, expected, replies = pending[0]
                replies.append(reply)
                if len(replies) == expected or reply.ends_connection:
                    pending.popleft()
                    if not future.done():
                        future.set_result(replies)
                if reply.ends_connection:
                    self.close()
                    return
        except Exception as error:  # not memcached's protocol, or a reply without a request
            self._fail_pending(f"its answer makes no sense: {error!r}")
            self.close()
        if self.is_slow and not pending:
            self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()
        self._fail_pending("the connection was closed")

    def abandon(self) -> None:
        """In a forked child: replace the descriptor by /dev/null.

        The descriptor is not closed, because the transport will close this number later, when it may belong to another
        file. The transport is not closed either, because it would unregister the descriptor from a selector that the
        parent shares.
        """
        if self.is_open:
            self.is_open = False
            devnull = os.open(os.devnull, os.O_RDWR)
            with contextlib.suppress(OSError):
                os.dup2(devnull, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(devnull)

    def _fail_pending(self, why: str) -> None:
        """Fail all exchanges: no more replies will arrive."""
        unsent, self._outbox = len(self._outbox), []
        while self._pending:
            future = self._pending.popleft().future
            if not future.done():
                error = errors.no_answer if len(self._pending) >= unsent else errors.not_sent
                future.set_exception(error(self._config.url, self._node, why))
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, _NEVER

    def _arm_timer(self, deadline: float) -> None:
        """Arm the one timer of all exchanges. It is re-armed only for an earlier deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self._runtime.now()), self._expire)

    def _expire(self) -> None:
        now = self._runtime.now()
        self._timer, self._timer_at = None, _NEVER
        for exchange in self._pending:
            if exchange.deadline <= now:
                self.is_slow = True
                if not exchange.future.done():
                    exchange.future.set_exception(errors.no_answer(self._config.url, self._node, "no answer in time"))
        deadlines = [exchange.deadline for exchange in self._pending if not exchange.future.done()]
        if deadlines:
            self._arm_timer(min(deadlines))
        elif self.is_slow:
            self.close()


class PipelinePort:
    """Connections to some servers, shared by the tasks of one loop."""

    def __init__(self, config: MemcachedConfig, runtime: AsyncioRuntime) -> None:
        self._config, self._runtime = config, runtime
        self._shared: dict[Node, Pipeline] = {}
        self._opening: dict[Node, asyncio.Task[Pipeline]] = {}
        self._all: set[Pipeline] = set()
        self._closed = False

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> Reply | None:
        return None

    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        if deadline <= self._runtime.now():
            raise errors.not_sent(self._config.url, batch.node, "there was no time left to ask")
        pipeline = self._shared.get(batch.node)
        if pipeline is None or not pipeline.is_usable():
            pipeline = await self._open_shared(batch.node, deadline)
        if batch.run is not None and batch.run != pipeline.run:
            return Answer(pipeline.run, ())
        requests = batch.requests
        packed = requests[0] if len(requests) == 1 else b"".join(requests)
        return Answer(pipeline.run, await pipeline.exchange(packed, len(requests), deadline))

    async def request_each(self, batches: Sequence[Batch], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        async def request(batch: Batch) -> Answer | HoldfastError:
            try:
                return await self.request(batch, deadline=deadline)
            except HoldfastError as error:
                return error

        return await asyncio.gather(*map(request, batches))

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        pipelines = list(self._all)
        for pipeline in pipelines:
            pipeline.close()
        pending: list[asyncio.Future[Any]] = [*self._opening.values(), *(pipeline.ended for pipeline in pipelines)]
        if pending:
            await asyncio.wait(pending)

    def abandon(self) -> None:
        self._closed = True
        for pipeline in self._all:
            pipeline.abandon()

    async def _open_shared(self, node: Node, deadline: float) -> Pipeline:
        """Open the connection in one task for all tasks that need it. Cancelling one of them does not cancel it."""
        opening = self._opening.get(node)
        if opening is None:
            if self._closed:
                raise errors.not_sent(self._config.url, node, "the client is closed")
            opening = self._runtime.loop.create_task(self._open(node))
            self._opening[node] = opening
            opening.add_done_callback(lambda task: self._opened(node, task))
        await asyncio.wait((opening,), timeout=max(0.0, deadline - self._runtime.now()))
        if not opening.done():
            raise errors.not_sent(self._config.url, node, "not connected in time")
        if opening.cancelled():
            raise errors.not_sent(self._config.url, node, "the client is closed")
        return opening.result()

    def _opened(self, node: Node, opening: asyncio.Task[Pipeline]) -> None:
        self._opening.pop(node, None)
        if not opening.cancelled() and opening.exception() is None:
            old = self._shared.get(node)
            self._shared[node] = opening.result()
            if old is not None and old.is_idle:
                old.close()

    async def _open(self, node: Node) -> Pipeline:
        pipeline = Pipeline(self._config, node, self._runtime)
        self._all.add(pipeline)
        try:
            await pipeline.open(self._config.connect_timeout)
        except BaseException:
            self._all.discard(pipeline)
            raise
        pipeline.ended.add_done_callback(lambda _: self._all.discard(pipeline))
        return pipeline
