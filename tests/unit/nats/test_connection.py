"""Hazard: the error of an exchange reports that nothing was changed, although its request was sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from holdfast.backends.nats.config import config_of
from holdfast.backends.nats.io.connection import REPEAT_AFTER, Connection
from holdfast.backends.nats.protocol import wire
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.errors import OutcomeUnknown
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse

NOW = ThreadRuntime().now


class LatePoller(BlockingPoller):
    """Returns no earlier than `late_until`."""

    late_until = 0.0

    async def poll(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        ready = await super().poll(wanted, until)
        while NOW() < self.late_until:
            threading.Event().wait(self.late_until - NOW())
        return ready


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(
    ("answer", "repeat"),
    [
        pytest.param(wire.PING, False, id="to answer a ping"),
        pytest.param(b"", True, id="to repeat the request"),
    ],
)
def test_the_outcome_of_a_sent_request_is_unknown_when_no_time_is_left(
    listener: socket.socket, answer: bytes, *, repeat: bool
) -> None:
    received = bytearray()

    def serve() -> None:
        with listener.accept()[0] as client:
            client.sendall(b'INFO {"version": "2.12.0"}\r\n')
            while wire.PING not in received:
                received.extend(client.recv(4096))
            client.sendall(wire.PONG)
            while b"HPUB" not in received:
                received.extend(client.recv(4096))
            client.sendall(answer)
            while client.recv(4096):
                pass

    server = threading.Thread(target=serve)
    server.start()
    config, poller = config_of(parse(f"nats://127.0.0.1:{listener.getsockname()[1]}")), LatePoller()
    connection = Connection(config, config.nodes[0], poller, ThreadRuntime())
    run_sync(connection.open(NOW() + 30))
    until = poller.late_until = NOW() + 2 * REPEAT_AFTER

    with pytest.raises(OutcomeUnknown):
        run_sync(connection.exchange([lambda reply: wire.publish("$KV.b.k", reply, b"")], until, repeat=repeat))

    server.join()
    assert b"HPUB $KV.b.k" in received
    assert not connection.is_open
