"""memcached for threads. A thread takes a connection from the pool for one exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memcached.config import MemcachedConfig, config_of
from holdfast.backends.memcached.io.handshake import handshake
from holdfast.backends.memcached.port import Answer, Batch, ServerRun
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.meta import Parser, Reply
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.errors import not_sent
from holdfast.backends.net.pool import IDLE_CHECK, ServerPools, exchange_each
from holdfast.backends.net.sockets import open_socket
from holdfast.backends.net.stream import Stream
from holdfast.backends.net.stream_connection import StreamConnection
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.core.ports import Backend, Runtime
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

_DONE = Reply("HD")


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address)
    port = SocketPort(config, runtime)
    return MemcachedBackend(config.url, port, runtime, prefix=config.prefix, nodes=config.nodes)


class SocketConnection(StreamConnection[Reply]):
    """One connection."""

    __slots__ = ("_config", "_parser", "run")

    def __init__(self, config: MemcachedConfig, node: Node, runtime: Runtime) -> None:
        super().__init__(config.url, node, runtime, config.io_timeout)
        self._config = config
        self._parser = Parser()
        self.run: ServerRun

    async def open(self, deadline: float) -> None:
        """Connect, log in and identify the server run.

        Raises:
            BackendUnavailable: the server could not be reached, or refused the login.
        """
        until = min(deadline, self._now() + self._config.connect_timeout)
        if until <= self._now():
            raise not_sent(self._url, self._node, "there was no time left to connect")
        try:
            node, tls, poller = self._node, self._config.tls, BlockingPoller()
            self.stream = Stream(await open_socket(node.host, node.port, poller, until, tls))
            self.run = await handshake(self.exchange_many, self._config, node, poller, until)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise not_sent(self._url, self._node, f"cannot connect: {error}") from error
            raise

    def exchange_one(self, request: bytes, deadline: float, now: float) -> Reply:
        """Send one request and read its reply. This is the fast path of every acquire and release."""
        self.used_at = now
        seconds = deadline - now
        if seconds > self._io_timeout:
            seconds = self._io_timeout
            deadline = now + seconds
        stream = self.stream
        if stream is None or seconds <= 0.0:
            raise self._not_usable()
        try:
            data = stream.exchange(request, seconds, deadline, self.probe)
            self.probe = None
            if data == b"HD\r\n":  # nearly all replies are one of these two
                return _DONE
            if data[:4] == b"HD c" and data[-2:] == b"\r\n" and data[4:-2].isdigit():
                return Reply("HD", int(data[4:-2]))
            self._parser.feed(data)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise self._failure(error, is_one=True) from error
            raise
        return self.receive(1, deadline)[0]

    def _read(self, stream: Stream, count: int, deadline: float) -> list[Reply]:
        parser = self._parser
        replies: list[Reply] = []
        while True:
            while len(replies) < count and (reply := parser.next_reply()) is not None:
                replies.append(reply)
                if reply.ends_connection:
                    self.close()
                    return replies
            if len(replies) == count:
                break
            parser.feed(stream.read(deadline, self.probe))
            self.probe = None
        if parser.has_data:
            self.close()  # the server sent data without a request
        return replies


class SocketPort(ServerPools[SocketConnection]):
    """Connections to some servers, shared by threads."""

    def __init__(self, config: MemcachedConfig, runtime: ThreadRuntime) -> None:
        super().__init__(config.url, config.nodes, runtime, config.max_connections, idle_check=IDLE_CHECK)
        self._config = config

    def request_now(self, node: Node, request: bytes, run: ServerRun, now: float, deadline: float) -> Reply | None:
        pool = self._pools[node]
        connection = pool.get_idle(now)
        if connection is None:
            return None
        try:
            reply = connection.exchange_one(request, deadline, now) if connection.run == run else None
        except BaseException as error:
            pool.put_after(connection, error)
            raise
        pool.put(connection)
        return reply

    async def request(self, batch: Batch, *, deadline: float) -> Answer:
        requests = batch.requests

        async def exchange(connection: SocketConnection) -> Answer:
            run = connection.run
            if batch.run is not None and batch.run != run:
                return Answer(run, ())
            if len(requests) == 1:
                return Answer(run, [connection.exchange_one(requests[0], deadline, self._now())])
            return Answer(run, await connection.exchange_many(b"".join(requests), len(requests), deadline))

        return await self._pools[batch.node].run(exchange, deadline)

    async def request_each(self, batches: Sequence[Batch], *, deadline: float) -> Sequence[Answer | HoldfastError]:
        def send(number: int, connection: SocketConnection) -> Answer | None:
            _, requests, run = batches[number]
            if run is not None and run != connection.run:
                return Answer(connection.run, ())
            connection.send(b"".join(requests), deadline, is_one=len(requests) == 1)
            return None

        def receive(number: int, connection: SocketConnection) -> Answer:
            return Answer(connection.run, connection.receive(len(batches[number].requests), deadline))

        return await exchange_each([self._pools[batch.node] for batch in batches], send, receive, deadline)

    async def open(self, node: Node, until: float) -> SocketConnection:
        if self._pools[node].is_closed:
            raise not_sent(self._url, node, "the client is closed")
        connection = SocketConnection(self._config, node, self._runtime)
        self._connections.add(connection)
        await connection.open(until)
        return connection
