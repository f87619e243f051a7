"""Blocking connections for threads. A thread takes a connection from the pool for one exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.net.pool import IDLE_CHECK, IDLE_KEPT, ConnectionPool, ServerPools, exchange_each
from holdfast.backends.net.stream import CLOSED, RECEIVE_TIME, Stream
from holdfast.backends.net.stream_connection import StreamConnection, problem_of
from holdfast.backends.redis.io import driver, errors
from holdfast.backends.redis.io.connection import Batch, OnConnect, introduce
from holdfast.backends.redis.io.resp import Parser
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    import socket

    from holdfast.backends.redis.config import Login, RedisConfig
    from holdfast.backends.redis.port import Reply
    from holdfast.core.ports import Runtime
    from holdfast.errors import HoldfastError
    from holdfast.url_parts import Node

_NUMBER, _END = b":\n"
# Enough for the usual replies of the scripts. Python allocates a buffer of at most 512 bytes from its own memory, which
# takes less time; a longer reply is read in parts.
_REPLY_SIZE = 400


async def connect(config: RedisConfig, login: Login, node: Node, *, db: int, until: float) -> socket.socket:
    """A socket to a server, authenticated.

    Raises:
        BackendUnavailable: the server could not be reached, or refused the login.
    """
    login = await login.current(config.url, BlockingPoller(), until)
    try:
        return driver.connected_socket(login, node, db=db, until=until)
    except driver.FAILURES as error:
        cause = errors.network_error(error)
        raise errors.not_connected(cause, config.url, node) from cause


class SocketConnection(StreamConnection["Reply"]):
    """One blocking connection."""

    __slots__ = ("_parser",)

    def __init__(self, config: RedisConfig, node: Node, runtime: Runtime) -> None:
        super().__init__(config.url, node, runtime, config.io_timeout)
        self._parser = Parser()

    def attach(self, sock: socket.socket) -> None:
        self.stream, self.used_at = Stream(sock), self._now()

    def detach(self) -> socket.socket:
        """Detach the socket for another use."""
        stream, self.stream = self.stream, None
        if stream is None:
            raise not_sent(self._url, self._node, "the client is closed")
        return stream.detach()

    def exchange(self, request: bytes, deadline: float, now: float) -> Reply:
        """Send one command and read its reply."""
        self.used_at = now
        deadline = min(deadline, now + self._io_timeout)
        if self.stream is None or deadline <= now:
            raise self._not_usable()
        return self.finish(request, None, deadline)

    def finish(self, unsent: bytes, data: bytes | None, deadline: float) -> Reply:
        """Send the `unsent` part of a command, and read its reply.

        `data` is the part of the reply that has arrived. None: no part of it arrived in the first half of the time, or
        before an error of the socket. Empty: the server has closed the connection.
        """
        try:
            stream = self.stream
            if stream is None or data == b"":
                raise ConnectionError(CLOSED)
            if unsent:
                stream.send(unsent, deadline)
                data = stream.read(deadline, self.probe)
            elif data is None:
                data = stream.read(deadline if self.probe is None else run_sync(self.probe(deadline)))
            parser = self._parser
            parser.feed(data)
            reply = parser.gets()
            if reply is False:
                (reply,) = self._read(stream, 1, deadline)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise self._failure(error, is_one=True) from error
            raise
        return reply

    def _read(self, stream: Stream, count: int, deadline: float) -> list[Reply]:
        replies: list[Reply] = []
        while len(replies) < count:
            reply = self._parser.gets()
            if reply is False:
                self._parser.feed(stream.read(deadline, self.probe))
                self.probe = None
            else:
                replies.append(reply)
        return replies


class SocketConnections(ServerPools[SocketConnection]):
    """Connections to servers with the same login, shared by threads."""

    def __init__(
        self, config: RedisConfig, login: Login, db: int, runtime: Runtime, on_connect: OnConnect | None
    ) -> None:
        super().__init__(config.url, (), runtime, config.max_connections, idle_check=IDLE_CHECK)
        self._config, self._login, self._db, self._on_connect = config, login, db, on_connect
        self._io_timeout = config.io_timeout
        self._closed = False

    def exchange_now(
        self, node: Node, around: tuple[bytes, bytes], nonce: str, now: float, deadline: float
    ) -> int | Awaitable[Reply]:
        # All steps of a usual exchange are in one function: when the server has just run on the same core, each further
        # function costs a microsecond.
        request = b"".join((around[0], nonce.encode(), around[1]))
        try:
            pool = self._pools[node]
            idle = pool.idle
            connection = idle.pop()  # atomic
        except LookupError:
            return self.exchange(node, request, deadline)
        stream, seconds = connection.stream, deadline - now
        if seconds > self._io_timeout:
            seconds = self._io_timeout
            deadline = now + seconds
        if stream is None or not stream.is_plain or seconds <= 0.0 or now - connection.used_at > IDLE_CHECK:
            idle.append(connection)
            return self.exchange(node, request, deadline)
        connection.used_at = now
        sent, data, receive = 0, None, stream.receive
        try:
            try:
                sent = stream.send_some(request, stream.flags)
                if sent == len(request):
                    # As `Stream.receive_until` does, in the first half of the time.
                    if receive is None or seconds < 4 * RECEIVE_TIME:
                        data = stream.poll_within(seconds / 2, _REPLY_SIZE)
                    else:
                        try:
                            data = receive(_REPLY_SIZE)
                        except BlockingIOError:
                            data = stream.poll_within(now + seconds / 2 - self._now(), _REPLY_SIZE)
            except OSError:
                pass  # no reply in the first half of the time; or `finish` repeats the step that failed, and reports it
            if not data or data[0] != _NUMBER or data[-1] != _END:
                return self._finish(pool, connection, request[sent:], data, deadline)
            reply = int(data[1:])  # an integer and nothing else, as most replies are
        except BaseException as error:
            pool.discard(connection)  # an interrupt, perhaps in the middle of a reply
            if isinstance(error, ValueError):  # the data is more than one integer
                raise no_answer(self._config.url, node, problem_of(error)) from error
            raise
        idle.append(connection)
        if len(idle) > IDLE_KEPT or pool.waiters or pool.is_closed:
            pool.after_put(connection)
        return reply

    async def _finish(
        self,
        pool: ConnectionPool[SocketConnection],
        connection: SocketConnection,
        unsent: bytes,
        data: bytes | None,
        deadline: float,
    ) -> Reply:
        """The rest of an exchange, from the unsent part of the request and the data that has arrived."""
        connection.probe = pool.probe
        try:
            reply = connection.finish(unsent, data, deadline)
        except BaseException as error:
            pool.put_after(connection, error)
            raise
        pool.put(connection)
        return reply

    async def exchange(self, node: Node, request: bytes, deadline: float) -> Reply:
        pool = self._pool(node)
        connection = pool.get_idle(self._now()) or await pool.open_or_wait(deadline)
        try:
            reply = connection.exchange(request, deadline, self._now())
        except BaseException as error:
            pool.put_after(connection, error)
            raise
        pool.put(connection)
        return reply

    async def exchange_batch(self, batch: Batch, deadline: float, *, alone: bool = False) -> list[Reply]:
        return await self._pool(batch.node).run(
            lambda connection: connection.exchange_many(batch.request, batch.count, deadline), deadline
        )

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        def send(number: int, connection: SocketConnection) -> None:
            connection.send(batches[number].request, deadline)

        def receive(number: int, connection: SocketConnection) -> list[Reply]:
            return connection.receive(batches[number].count, deadline)

        return await exchange_each([self._pool(batch.node) for batch in batches], send, receive, deadline)

    def drop(self, node: Node) -> None:
        pool = self._pools.pop(node, None)
        if pool is not None:
            pool.close()

    async def close(self) -> None:
        self._closed = True
        await super().close()

    def abandon(self) -> None:
        self._closed = True
        super().abandon()

    def _pool(self, node: Node) -> ConnectionPool[SocketConnection]:
        return self._pools.get(node) or self._pools.setdefault(node, self._new_pool(node))

    async def open(self, node: Node, until: float) -> SocketConnection:
        if self._closed:
            raise not_sent(self._url, node, "the client is closed")
        connection = SocketConnection(self._config, node, self._runtime)
        now = self._now()
        connect_until = min(until, now + self._config.connect_timeout)
        if connect_until <= now:
            raise not_sent(self._url, node, "there was no time left to connect")
        login, db = self._config.logins.get(node, (self._login, self._db))
        self._connections.add(connection)
        connection.attach(await connect(self._config, login, node, db=db, until=connect_until))
        await introduce(connection, node, self._on_connect, until)
        return connection
