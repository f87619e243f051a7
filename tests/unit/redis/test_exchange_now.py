"""Hazard: the short exchange of the straight path reuses a connection that still has, or will get, a reply to read."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from holdfast.backends.net.stream import RECEIVE_TIME
from holdfast.backends.redis.config import config_of
from holdfast.backends.redis.io.sockets import SocketConnection, SocketConnections
from holdfast.errors import OutcomeUnknown
from holdfast.runtimes.system import now
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast.url_parts import Node

NODE = Node("127.0.0.1", 6379)
AROUND = (b"*1\r\n$3\r\n", b"\r\n")  # the bytes of a command before and after its argument
IO_TIMEOUT = 0.2


class Stopped(BaseException):
    """An exception that ends a request and is no error, as gevent.Timeout."""


class PooledConnection(NamedTuple):
    """A pool with one idle connection, and the server's end of this connection."""

    connections: SocketConnections
    server: socket.socket
    seconds: float  # for an exchange

    def exchange(self) -> object:
        started = now()
        reply = self.connections.exchange_now(NODE, AROUND, "abc", started, started + self.seconds)
        return reply if isinstance(reply, int) else run_sync(reply)  # type: ignore[arg-type]  # a coroutine

    @property
    def idle(self) -> list[SocketConnection]:
        return self.connections._pool(NODE).idle


@pytest.fixture(params=["usual", "short"])
def pooled(request: pytest.FixtureRequest) -> Iterator[PooledConnection]:
    """With the usual time, in which recv() waits before poll(), or with a short time, in which only poll() waits."""
    config = config_of(parse(f"redis://127.0.0.1:6379?io_timeout={IO_TIMEOUT}", {}), is_asyncio=False)
    runtime = ThreadRuntime()
    ours, theirs = socket.socketpair()
    with theirs:
        connections = SocketConnections(config, config.login_of(NODE), 0, runtime, None)
        connection = SocketConnection(config, NODE, runtime)
        connection.attach(ours)
        connections._pool(NODE).put(connection)
        yield PooledConnection(connections, theirs, IO_TIMEOUT if request.param == "usual" else 3 * RECEIVE_TIME)
        run_sync(connections.close())


def test_a_complete_integer_is_returned_and_the_connection_is_idle_again(pooled: PooledConnection) -> None:
    (connection,) = pooled.idle
    pooled.server.send(b":17\r\n")

    assert pooled.exchange() == 17
    assert pooled.server.recv(64) == b"*1\r\n$3\r\nabc\r\n"
    assert pooled.idle == [connection]


def test_a_reply_that_arrives_in_parts_is_read_to_its_end(pooled: PooledConnection) -> None:
    (connection,) = pooled.idle
    pooled.server.send(b"*2\r\n$4\r\nwait\r\n:1")
    pooled.server.send(b"\r\n")

    assert pooled.exchange() == [b"wait", 1]
    assert pooled.idle == [connection]


@pytest.mark.parametrize("data", [b":1\r\n:2\r\n", b":1", b""], ids=["two replies", "half a reply", "no reply"])
def test_a_connection_without_exactly_one_reply_is_closed_and_not_reused(pooled: PooledConnection, data: bytes) -> None:
    (connection,) = pooled.idle
    if data:
        pooled.server.send(data)

    with pytest.raises(OutcomeUnknown):
        pooled.exchange()

    assert connection not in pooled.idle
    assert not connection.is_open


def test_a_connection_that_the_server_has_closed_is_not_reused(pooled: PooledConnection) -> None:
    (connection,) = pooled.idle
    pooled.server.shutdown(socket.SHUT_WR)

    with pytest.raises(OutcomeUnknown):
        pooled.exchange()

    assert connection not in pooled.idle
    assert not connection.is_open


@pytest.mark.parametrize("count", [1, 2])
def test_an_exception_that_is_no_error_closes_the_connection_and_reaches_the_caller(
    pooled: PooledConnection, count: int
) -> None:
    async def stop(deadline: float) -> float:
        raise Stopped

    (connection,) = pooled.idle
    connection.probe = stop  # called when no reply has arrived in the first half of the time
    started = now()

    with pytest.raises(Stopped):
        if count == 1:
            connection.exchange(b"*1", started + pooled.seconds, started)
        else:
            run_sync(connection.exchange_many(b"*1", count, started + pooled.seconds))

    assert not connection.is_open


def test_a_closed_or_abandoned_connection_has_no_open_descriptor(pooled: PooledConnection) -> None:
    (connection,) = pooled.idle
    stream = connection.stream
    assert stream is not None
    descriptor = stream._sock.fileno()

    connection.abandon()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert pooled.server.recv(1) == b""
