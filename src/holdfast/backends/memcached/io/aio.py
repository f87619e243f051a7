"""memcached for asyncio: one connection per server, shared by all tasks (net/pipeline.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from holdfast.backends.memcached.config import MemcachedConfig, config_of
from holdfast.backends.memcached.io.handshake import handshake
from holdfast.backends.memcached.port import Answer, Batch, ServerRun
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.net.aio import LoopPoller
from holdfast.backends.net.errors import not_sent
from holdfast.backends.net.pipeline import NO_REPLY, LoopConnection, Pipeline, SharedPipelines, outcome_of
from holdfast.backends.net.sockets import open_socket
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address

_READ_SIZE = 65536


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    runtime.waits_for_sockets = True
    config = config_of(address)
    port = PipelinePort(config, runtime)
    return MemcachedBackend(config.url, port, runtime, prefix=config.prefix, nodes=config.nodes)


class MemcachedPipeline(Pipeline[Reply], asyncio.BufferedProtocol):
    """One connection that all tasks share.

    It is a BufferedProtocol, because for any other protocol the loop allocates 256 KiB at each read. The C library may
    get that memory from the kernel and return it each time, which takes as long as an exchange.
    """

    def __init__(self, config: MemcachedConfig, node: Node, runtime: AsyncioRuntime) -> None:
        parser = Parser()
        super().__init__(config.url, node, runtime, config.io_timeout, parser)
        self._config = config
        self._next = parser.next_reply
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self.run: ServerRun

    async def open(self, timeout: float) -> None:
        """Connect, log in and identify the server run.

        Raises:
            BackendUnavailable: the server could not be reached, or refused the login.
        """
        deadline = self._runtime.now() + timeout
        tls = self._config.tls
        name = self._node.host if tls is not None else None
        poller = LoopPoller(self._runtime)
        try:
            sock = await open_socket(self._node.host, self._node.port, poller, deadline)
            try:
                async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
                    await self._loop.create_connection(lambda: self, sock=sock, ssl=tls, server_hostname=name)
            except BaseException:
                sock.close()
                raise
            self.run = await handshake(self.exchange_many, self._config, self._node, poller, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                raise not_sent(self._url, self._node, f"cannot connect: {why}") from error
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.deliver(bytes(self._buffer[:nbytes]))

    def next_reply(self) -> Reply:
        reply = self._next() if self.is_open else None
        if reply is not None and reply.ends_connection:
            LoopConnection.close(self)  # this reply is still delivered
        return NO_REPLY if reply is None else reply


class PipelinePort(SharedPipelines[MemcachedPipeline]):
    """Connections to some servers, shared by the tasks of one loop."""

    def __init__(self, config: MemcachedConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config.url, runtime, config.connect_timeout)
        self._config = config

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> Reply | None:
        return None

    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        pipeline = await self.shared(batch.node, deadline)
        if batch.run is not None and batch.run != pipeline.run:
            return Answer(pipeline.run, ())
        requests = batch.requests
        packed = requests[0] if len(requests) == 1 else b"".join(requests)
        return Answer(pipeline.run, await pipeline.exchange_many(packed, len(requests), deadline))

    async def request_each(self, batches: Sequence[Batch], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        return await asyncio.gather(*(outcome_of(self.request(batch, deadline=deadline)) for batch in batches))

    async def open_pipeline(self, node: Node, timeout: float) -> MemcachedPipeline:
        pipeline = MemcachedPipeline(self._config, node, self._runtime)
        self._add(pipeline)
        try:
            await pipeline.open(timeout)
        except BaseException:
            self._all.discard(pipeline)
            raise
        return pipeline
