"""Connections for asyncio: pipelines on redis-py's transport.

Of redis.asyncio's connection only the transport is used, with our own protocol. Reading in a task from its StreamReader
was measured: a fifth slower for one task, and a third of the requests per second for fifty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.net.aio import LoopPoller
from holdfast.backends.net.errors import not_sent
from holdfast.backends.net.pipeline import NO_REPLY, DirectReply, LoopConnection, Pipeline, SharedPipelines, outcome_of
from holdfast.backends.net.stream import READ_SIZE
from holdfast.backends.redis.io import driver, errors
from holdfast.backends.redis.io.connection import Batch, OnConnect, introduce
from holdfast.backends.redis.io.resp import Parser
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Login, RedisConfig
    from holdfast.backends.redis.port import Reply
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url_parts import Node


_NUMBER, _END = b":\n"


class DriverConnection(LoopConnection, asyncio.BaseProtocol):
    """A transport of redis-py with our own protocol.

    A subclass is an asyncio.Protocol or an asyncio.BufferedProtocol. It must not be both, because event loops differ in
    which of the two they prefer.
    """

    _driver: Any = None  # redis-py's connection, which closes the transport when it is collected
    _is_plain = False

    async def open(self, login: Login, db: int, timeout: float) -> None:
        """Connect and authenticate.

        Raises:
            BackendUnavailable: the server could not be reached, or refused the login.
        """
        connection: Any = None
        poller, until = LoopPoller(self._runtime), self._runtime.now() + timeout
        login = await login.current(self._url, poller, until)
        timeout = until - self._runtime.now()
        try:
            connection = driver.new_connection(login, self._node, db=db, timeout=timeout, poller=poller)
            async with asyncio.timeout(timeout):
                await connection.connect()
        except BaseException as error:
            if connection is not None:
                driver.close_transport(connection)
            if isinstance(error, driver.FAILURES):
                cause = errors.network_error(error)
                raise errors.not_connected(cause, self._url, self._node) from cause
            raise
        self._driver = connection
        self._transport = driver.transport_of(connection)
        self._transport.set_protocol(self)
        # Only the loop calls the protocol of a plain transport. TLS may do so while a task runs.
        self._is_plain = self._transport.get_extra_info("ssl_object") is None
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._driver is not None:
            driver.close_transport(self._driver)
            self._driver = None
        super().connection_lost(exc)


class RedisPipeline(Pipeline["Reply"], DriverConnection, asyncio.BufferedProtocol):
    """One connection that is shared by all tasks."""

    def __init__(self, config: RedisConfig, node: Node, runtime: AsyncioRuntime) -> None:
        parser = Parser()
        super().__init__(config.url, node, runtime, config.io_timeout, parser)
        self._gets, self._has_data = parser.gets, parser.has_data
        self._is_partial = False  # the parser has a part of a reply
        self._buffer = bytearray(READ_SIZE)  # else the loop allocates 256 KiB for each reply

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        pending, buffer = self._pending, self._buffer
        if buffer[0] == _NUMBER and buffer[nbytes - 1] == _END and len(pending) == 1 and not self._is_partial:
            future, _, _, replies = pending[0]
            if replies is None and self.is_open and not self.is_slow:
                reply = int(buffer[1:nbytes])  # an integer and nothing else, as most replies are
                pending.popleft()
                if future.done():
                    return  # its task was cancelled
                if future.__class__ is DirectReply and self._is_plain:
                    future.resume(reply)  # the task runs inside of this call, so no statement may follow it
                else:
                    future.set_result(reply)
                return
        self.deliver(bytes(buffer[:nbytes]))
        self._is_partial = self._has_data()

    def next_reply(self) -> Reply:
        reply = self._gets()
        return NO_REPLY if reply is False else reply


class PipelineConnections(SharedPipelines[RedisPipeline]):
    """Connections to servers with the same login, shared by the tasks of one loop."""

    def __init__(
        self, config: RedisConfig, login: Login, db: int, runtime: AsyncioRuntime, on_connect: OnConnect | None
    ) -> None:
        super().__init__(config.url, runtime, config.connect_timeout)
        self._config, self._login, self._db, self._on_connect = config, login, db, on_connect
        self._alone: dict[Node, list[RedisPipeline]] = {}  # idle, for requests that would block others

    def exchange_now(
        self, node: Node, around: tuple[bytes, bytes], nonce: str, now: float, deadline: float
    ) -> Awaitable[Reply]:
        request = b"".join((around[0], nonce.encode(), around[1]))
        try:
            future = self._shared[node].submit_now(request, now, deadline)
        except KeyError:
            future = None
        return self.exchange(node, request, deadline) if future is None else future

    async def exchange(self, node: Node, request: bytes, deadline: float) -> Reply:
        return await (await self.shared(node, deadline)).submit(request, deadline)

    async def exchange_batch(self, batch: Batch, deadline: float, *, alone: bool = False) -> list[Reply]:
        if alone:
            return await self._exchange_alone(batch, deadline)
        pipeline = await self.shared(batch.node, deadline)
        return await pipeline.exchange_many(batch.request, batch.count, deadline)

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        exchanges = [outcome_of(self.exchange_batch(batch, deadline, alone=alone)) for batch in batches]
        if len(exchanges) == 1:
            return [await exchanges[0]]
        return await asyncio.gather(*exchanges)

    def drop(self, node: Node) -> None:
        pipeline = self._shared.pop(node, None)
        for connection in (*self._alone.pop(node, ()), *((pipeline,) if pipeline else ())):
            if connection.is_idle:
                connection.close()
            else:
                connection.is_slow = True  # closes after its last reply or deadline

    async def _exchange_alone(self, batch: Batch, deadline: float) -> list[Reply]:
        idle = self._alone.setdefault(batch.node, [])
        pipeline = None
        while idle and pipeline is None:
            candidate = idle.pop()
            pipeline = candidate if candidate.is_usable(deadline) else None
        if pipeline is None:
            timeout = deadline - self._runtime.now()
            pipeline = await self.open_pipeline(batch.node, min(self._config.connect_timeout, timeout))
        try:
            replies = await pipeline.exchange_many(batch.request, batch.count, deadline)
        except BaseException:
            pipeline.close()
            raise
        idle.append(pipeline)
        return replies

    async def open_pipeline(self, node: Node, timeout: float) -> RedisPipeline:
        if timeout <= 0.0:
            raise not_sent(self._url, node, "there was no time left to connect")
        deadline = self._runtime.now() + timeout
        pipeline = RedisPipeline(self._config, node, self._runtime)
        login, db = self._config.logins.get(node, (self._login, self._db))
        await pipeline.open(login, db, timeout)
        self._add(pipeline)
        await introduce(pipeline, node, self._on_connect, deadline)
        return pipeline
