"""Hazard: a peer disappears without closing its connection, or two processes share a connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.net.sockets import USER_TIMEOUT_MS, open_socket
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

PATIENCE = 30.0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def test_every_connection_has_keepalive_and_a_user_timeout(silent: socket.socket) -> None:
    host, port = silent.getsockname()
    with run_sync(open_socket(host, port, BlockingPoller(), system.now() + PATIENCE)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 10
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS
        assert not sock.getblocking()


def test_the_next_address_is_tried_when_one_refuses(silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)

    with run_sync(
        open_socket("db.example", silent.getsockname()[1], BlockingPoller(), system.now() + PATIENCE)
    ) as sock:
        assert sock.getpeername() == silent.getsockname()


@pytest.mark.parametrize("scheme", ["redis", "memcached", "mysql", "zookeeper"])
def test_a_child_does_not_keep_a_connection_that_another_thread_is_opening(silent: socket.socket, scheme: str) -> None:
    client = holdfast.Client(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/{'db' if scheme == 'mysql' else ''}")

    def use() -> None:
        with pytest.raises(holdfast.BackendError):
            client.lock("a").acquire(timeout=0)

    thread = threading.Thread(target=use)
    thread.start()
    accepted, _ = silent.accept()  # the client waits for the handshake
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ended, 1)  # until the parent has checked
        os._exit(0)
    os.close(ended)
    try:
        thread.join(PATIENCE)  # it times out, and its connection ends
        client.close()
        accepted.settimeout(PATIENCE)
        while accepted.recv(4096):
            pass
    finally:
        os.close(end)
        os.waitpid(child, 0)
        accepted.close()
