"""Hazard: a planned network fault does not happen, or does not end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_lab.verify.hub import Hub
from holdfast_lab.verify.parent import HubServer
from holdfast_lab.verify.proxies import Proxy

SHORT = 0.3  # seconds in which nothing must arrive
PATIENCE = 30.0


class Echo:
    """A server that answers with what it received."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1000):
                self.received += data
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends accept() in the other thread
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with HubServer(tmp_path) as server:
        yield server


def connected(hub: HubServer, echo: Echo, client: str = "a") -> socket.socket:
    port = Hub(hub.path, client).proxy("127.0.0.1", echo.port)
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def proxies(hub: HubServer, *clients: str) -> list[Proxy]:
    return hub.proxies.chosen(clients or ["a"], hub.proxies.servers)


def exchanged(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(1000)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SHORT)
    try:
        return connection.recv(1000) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE)


def test_bytes_pass_in_both_directions(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as connection:
        assert exchanged(connection, b"one") == b"one"


def test_a_cut_resets_connections_and_accepts_new_ones(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as connection:
        exchanged(connection, b"one")

        hub.proxies.cut(proxies(hub))

        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connected(hub, echo) as connection:
        assert exchanged(connection, b"two") == b"two"


def test_refused_connections_are_accepted_again_on_the_same_port_after_healing(hub: HubServer, echo: Echo) -> None:
    connected(hub, echo).close()
    hub.proxies.refuse(proxies(hub))

    with pytest.raises(ConnectionRefusedError):
        connected(hub, echo)
    hub.proxies.heal(proxies(hub))

    with connected(hub, echo) as connection:
        assert exchanged(connection, b"one") == b"one"


def test_held_requests_reach_the_server_after_healing(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as connection:
        hub.proxies.hold(proxies(hub), "requests")

        connection.sendall(b"one")
        assert is_silent(connection)
        assert echo.received == b""
        hub.proxies.heal(proxies(hub))

        assert connection.recv(1000) == b"one"


def test_requests_are_executed_while_replies_are_held(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as connection:
        hub.proxies.hold(proxies(hub), "replies")

        connection.sendall(b"one")
        assert is_silent(connection)
        assert echo.received == b"one"
        hub.proxies.heal(proxies(hub))

        assert connection.recv(1000) == b"one"


def test_a_half_open_connection_stays_silent_and_a_new_one_works(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as old:
        exchanged(old, b"one")
        hub.proxies.forget(proxies(hub))

        old.sendall(b"two")
        assert is_silent(old)
        hub.proxies.heal(proxies(hub))
        assert is_silent(old)

        with connected(hub, echo) as new:
            assert exchanged(new, b"three") == b"three"
    assert b"two" not in echo.received


def test_a_fault_of_one_client_does_not_hit_another(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo, "a"), connected(hub, echo, "b") as other:
        hub.proxies.hold(proxies(hub, "a"), "requests", "replies")

        assert exchanged(other, b"one") == b"one"


def test_a_delay_delays_and_ends_with_healing(hub: HubServer, echo: Echo) -> None:
    with connected(hub, echo) as connection:
        hub.proxies.delay(proxies(hub), PATIENCE)
        connection.sendall(b"one")
        assert is_silent(connection)
        hub.proxies.heal(proxies(hub))

    with connected(hub, echo) as connection:
        assert exchanged(connection, b"two") == b"two"


def test_a_server_that_refuses_resets_the_connection_of_the_client(hub: HubServer, echo: Echo) -> None:
    echo.close()

    with pytest.raises(ConnectionResetError), connected(hub, echo) as connection:
        connection.recv(1)
