"""Hazard: in the network of the partition tests, a kind of cut does not do to packets what its name says."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Sequence

import pytest

from tests.support.partitions.networks import Cut, Network, inside, network
from tests.support.processes import PATIENCE
from tests.support.server_process import Host

PORT = 7000
SOON = 0.3  # seconds after which a packet that has not arrived counts as lost


@pytest.fixture(scope="module")
def pair() -> Iterator[Network]:
    with network("client", "server") as made:
        yield made


@contextlib.contextmanager
def connected(pair: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end of a connection, and the server's."""
    with contextlib.ExitStack() as stack:
        with at(pair.hosts["server"]):
            listening = stack.enter_context(socket.create_server(("", PORT)))
        client = stack.enter_context(connect(pair, PATIENCE))
        server = stack.enter_context(listening.accept()[0])
        stack.callback(pair.heal)
        yield client, server


def connect(pair: Network, timeout: float) -> socket.socket:
    with at(pair.hosts["client"]):
        return socket.create_connection((pair.hosts["server"].address, PORT), timeout=timeout)


def at(host: Host) -> contextlib.AbstractContextManager[None]:
    assert host.namespace is not None
    return inside(host.namespace)


def assert_passed(sender: socket.socket, receiver: socket.socket) -> None:
    sender.send(b"!")
    receiver.settimeout(PATIENCE)
    assert receiver.recv(1) == b"!"


def assert_lost(sender: socket.socket, receiver: socket.socket) -> None:
    sender.send(b"!")
    receiver.settimeout(SOON)
    with pytest.raises(TimeoutError):
        receiver.recv(1)


@pytest.mark.parametrize(
    ("how", "passed"),
    [
        (Cut.DROP, ()),
        (Cut.UNREACHABLE, ()),
        (Cut.LOSE_REQUESTS, ("replies",)),
        (Cut.LOSE_REPLIES, ("requests",)),
    ],
)
def test_a_cut_stops_the_chosen_directions_of_an_open_connection(
    pair: Network, how: Cut, passed: Sequence[str]
) -> None:
    with connected(pair) as (client, server):
        directions = {"requests": (client, server), "replies": (server, client)}
        for ends in directions.values():
            assert_passed(*ends)

        pair.cut_off(pair.hosts["client"], [pair.hosts["server"]], how)

        for direction, ends in directions.items():
            (assert_passed if direction in passed else assert_lost)(*ends)


def test_a_reset_reaches_the_sender(pair: Network) -> None:
    with connected(pair) as (client, server):
        pair.cut_off(pair.hosts["client"], [pair.hosts["server"]], Cut.RESET)

        for end in (client, server):
            end.settimeout(PATIENCE)
            end.send(b"!")
            with pytest.raises(ConnectionResetError):
                end.recv(1)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (Cut.DROP, None),
        (Cut.RESET, errno.ECONNREFUSED),
        (Cut.UNREACHABLE, errno.EHOSTUNREACH),
        (Cut.LOSE_REQUESTS, None),
        (Cut.LOSE_REPLIES, None),
    ],
)
def test_a_new_connection_fails_as_the_cut_says_and_works_after_heal(
    pair: Network, how: Cut, error: int | None
) -> None:
    with connected(pair):
        pair.cut_off(pair.hosts["client"], [pair.hosts["server"]], how)

        with pytest.raises(OSError) as failed:  # noqa: PT011 (the number is checked below)
            connect(pair, SOON if error is None else PATIENCE)
        assert failed.value.errno == error
        assert isinstance(failed.value, TimeoutError) is (error is None)

        pair.heal()
        connect(pair, PATIENCE).close()
