"""A part of a request is written twice or not at all, or an error names the wrong outcome of a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.backends.etcd.io.connection import Connection
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.errors import BackendUnavailable, OutcomeUnknown
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url_parts import Node

LARGE = bytes(range(256)) * (1 << 16)  # 16 MiB: more than the buffers of both sockets
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NOW = ThreadRuntime().now


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def connect(listener: socket.socket) -> Connection:
    node = Node("127.0.0.1", listener.getsockname()[1])
    connection = Connection("etcd://here", node, BlockingPoller(), ThreadRuntime())
    run_sync(connection.connect(None, NOW() + 30))
    return connection


def serve(listener: socket.socket, work: Callable[[socket.socket], object]) -> threading.Thread:
    def run() -> None:
        with listener.accept()[0] as client:
            work(client)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_request_larger_than_the_buffers_is_written_completely_and_once(listener: socket.socket) -> None:
    received = bytearray()

    def answer(client: socket.socket) -> None:
        while len(received) < len(LARGE):
            received.extend(client.recv(1 << 20))
        client.sendall(ANSWER)

    connection, server, before = connect(listener), serve(listener, answer), NOW()
    response, sent = run_sync(connection.exchange(LARGE, NOW() + 30))
    server.join()

    assert received == LARGE
    assert response.body == b"{}"
    assert before <= sent <= NOW()
    assert connection.is_open
    connection.close()


def test_the_outcome_is_unknown_when_a_part_of_the_request_was_written(listener: socket.socket) -> None:
    connection, server = connect(listener), serve(listener, lambda client: client.recv(1))

    with pytest.raises(OutcomeUnknown):
        run_sync(connection.exchange(LARGE, NOW() + 30))
    server.join()

    assert not connection.is_open


def test_nothing_is_written_when_no_time_is_left(listener: socket.socket) -> None:
    received: list[bytes] = []
    connection, server = connect(listener), serve(listener, lambda client: received.append(client.recv(1)))

    with pytest.raises(BackendUnavailable, match="no time was left"):
        run_sync(connection.exchange(b"request", NOW()))
    server.join()

    assert received == [b""]
    assert not connection.is_open


def test_nothing_is_requested_on_a_connection_that_was_shut_down(listener: socket.socket) -> None:
    connection, server = connect(listener), serve(listener, lambda client: client.recv(1))
    with socket.socket(fileno=connection.fileno()) as other:
        other.shutdown(socket.SHUT_WR)
        other.detach()
    server.join()

    with pytest.raises(BackendUnavailable, match="Broken pipe"):
        run_sync(connection.exchange(b"request", NOW() + 30))

    assert not connection.is_open
