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
AROUND = (b"*1\r\n$3\r\n", b"\r\n")


IO_TIMEOUT = 0.2


class Wire(NamedTuple):
    """Connections with one idle connection, and the other end of it."""

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
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """With the usual time, of which recv() waits for the first part, or with less, which poll() waits for."""
    config = config_of(parse(f"redis://127.0.0.1:6379?io_timeout={IO_TIMEOUT}", {}), is_asyncio=False)
    runtime = ThreadRuntime()
    ours, theirs = socket.socketpair()
    with theirs:
        connections = SocketConnections(config, config.login_of(NODE), 0, runtime, None)
        connection = SocketConnection(config, NODE, runtime)
        connection.attach(ours)
        connections._pool(NODE).put(connection)
        yield Wire(connections, theirs, IO_TIMEOUT if request.param == "usual" else 3 * RECEIVE_TIME)
        run_sync(connections.close())


def test_a_complete_integer_is_returned_and_the_connection_is_idle_again(wire: Wire) -> None:
    (connection,) = wire.idle
    wire.server.send(b":17\r\n")

    assert wire.exchange() == 17
    assert wire.server.recv(64) == b"*1\r\n$3\r\nabc\r\n"
    assert wire.idle == [connection]


def test_a_reply_that_arrives_in_parts_is_read_to_its_end(wire: Wire) -> None:
    (connection,) = wire.idle
    wire.server.send(b"*2\r\n$4\r\nwait\r\n:1")
    wire.server.send(b"\r\n")

    assert wire.exchange() == [b"wait", 1]
    assert wire.idle == [connection]


@pytest.mark.parametrize("data", [b":1\r\n:2\r\n", b":1", b""], ids=["two replies", "half a reply", "no reply"])
def test_a_connection_without_exactly_one_reply_is_closed_and_not_reused(wire: Wire, data: bytes) -> None:
    (connection,) = wire.idle
    if data:
        wire.server.send(data)

    with pytest.raises(OutcomeUnknown):
        wire.exchange()

    assert connection not in wire.idle
    assert not connection.is_open


def test_a_connection_that_the_server_has_closed_is_not_reused(wire: Wire) -> None:
    (connection,) = wire.idle
    wire.server.shutdown(socket.SHUT_WR)

    with pytest.raises(OutcomeUnknown):
        wire.exchange()

    assert connection not in wire.idle
    assert not connection.is_open


def test_a_closed_or_abandoned_connection_has_no_open_descriptor(wire: Wire) -> None:
    (connection,) = wire.idle
    stream = connection.stream
    assert stream is not None
    descriptor = stream._sock.fileno()

    connection.abandon()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert wire.server.recv(1) == b""
