"""Hazard: a wait continues after its deadline, because signals restart it or because select has no poll()."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

import holdfast
from holdfast.backends.net.poller import READ, WRITE, SelectPoll, is_readable, new_poll
from holdfast.backends.net.stream import NotSent, Stream, send_all
from holdfast.runtimes import system
from tests.support.memcached import shared

SIGNAL_INTERVAL = 0.02  # seconds
DEADLINE = 0.2
LONG = 30.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003 (its name says it)
        yield ours, theirs


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """A timer that interrupts this thread continuously, as a profiler does."""
    received: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: received.append(number))
    signal.setitimer(signal.ITIMER_REAL, SIGNAL_INTERVAL, SIGNAL_INTERVAL)
    yield received
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def exchange(sock: socket.socket) -> None:
    Stream(sock).exchange(b"question", DEADLINE, system.now() + DEADLINE, None)


def read(sock: socket.socket) -> None:
    Stream(sock).read(system.now() + DEADLINE)


def receive(sock: socket.socket) -> None:
    if Stream(sock).receive_until(system.now() + DEADLINE, DEADLINE, 1) is None:
        raise TimeoutError


def receive_one_part(sock: socket.socket) -> None:
    receive = Stream(sock).receive
    if receive is None:
        pytest.skip("recv() with a short timeout is not used where the kernel's ticks are long")
    with pytest.raises(BlockingIOError):
        receive(1)
    read(sock)  # waits until the deadline, so that a signal arrives


def send(sock: socket.socket) -> None:
    send_all(sock, b"x" * (1 << 24), system.now() + DEADLINE)


def send_on_stream(sock: socket.socket) -> None:
    try:
        Stream(sock).send(b"x" * (1 << 24), system.now() + DEADLINE)
    except NotSent as error:
        raise TimeoutError from error


@pytest.mark.parametrize("wait", [exchange, read, receive, receive_one_part, send, send_on_stream])
def test_signals_do_not_delay_the_deadline(
    pair: tuple[socket.socket, socket.socket], signals: list[int], wait: Callable[[socket.socket], None]
) -> None:
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        wait(pair[0])

    assert time.monotonic() - began < LONG
    assert signals


def test_acquire_ends_in_time_when_signals_arrive_and_the_server_hangs(signals: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = holdfast.Client(f"memcached://127.0.0.1:{silent.getsockname()[1]}?connect_timeout=0.3")

        with pytest.raises(holdfast.BackendUnavailable, match="no answer in time"):
            client.lock("a").acquire(timeout=0)

        client.close()


def test_a_partly_sent_request_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(NotSent):
        Stream(pair[0]).exchange(b"x" * (1 << 24), DEADLINE, system.now() + DEADLINE, None)


def test_data_that_has_arrived_is_read_after_the_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].send(b"answer")

    assert Stream(pair[0]).read(system.now() - 1) == b"answer"


def test_an_answer_is_received_when_it_needs_longer_than_one_receive(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    stream, request = Stream(ours), b"question"
    waits: list[None] = []

    def receive(size: int) -> bytes:
        try:
            return ours.recv(size)
        except BlockingIOError:
            waits.append(None)
            theirs.send(b"answer")
            raise

    stream.receive = receive

    assert stream.exchange(request, LONG, system.now() + LONG, None) == b"answer"
    assert theirs.recv(len(request)) == request
    assert waits == [None]


def test_a_socket_of_another_kind_is_never_made_blocking(pair: tuple[socket.socket, socket.socket]) -> None:
    class GreenSocket:
        """A wrapper, as the sockets of gevent are."""

        def __getattr__(self, name: str) -> object:
            return getattr(pair[0], name)

    stream = Stream(cast("socket.socket", GreenSocket()))
    pair[1].send(b"answer")

    assert stream.receive is None
    assert stream.exchange(b"question", LONG, system.now() + LONG, None) == b"answer"
    assert pair[0].gettimeout() == 0.0


def test_a_socket_that_refuses_the_timeout_of_recv_does_not_block(pair: tuple[socket.socket, socket.socket]) -> None:
    class Refusing(socket.socket):
        """As on a 32-bit system whose SO_RCVTIMEO expects another structure."""

        def setsockopt(self, *_: object) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with Refusing(fileno=pair[0].detach()) as ours:
        stream = Stream(ours)
        pair[1].send(b"answer")

        assert stream.receive is None
        assert stream.exchange(b"question", LONG, system.now() + LONG, None) == b"answer"
        assert ours.gettimeout() == 0.0


def test_a_deadline_that_has_passed_during_a_receive_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    began = system.now()

    assert Stream(pair[0]).receive_until(began - 1, LONG, 1) is None
    assert system.now() - began < LONG


def test_a_socket_for_another_use_does_not_block(pair: tuple[socket.socket, socket.socket]) -> None:
    assert Stream(pair[0]).detach().gettimeout() == 0.0


def test_the_end_of_a_connection_is_detected_and_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    stream = Stream(pair[0])
    assert not stream.is_dead()

    pair[1].close()

    assert stream.is_dead()
    with pytest.raises(ConnectionError, match="closed the connection"):
        stream.read(system.now() + LONG)


def test_select_replaces_poll_where_it_is_missing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    poll = SelectPoll()
    poll.register(ours, READ)

    assert poll.poll(0) == []
    theirs.send(b"x")
    assert poll.poll() == [(ours.fileno(), READ)]
    poll.register(ours, READ | WRITE)
    assert poll.poll(0) == [(ours.fileno(), READ | WRITE)]
    ours.close()
    assert poll.poll(0)


def test_locks_work_where_the_standard_library_has_no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    client = holdfast.Client(shared.fresh_url())

    with client.lock("a") as lease, client.lock("b"):
        lease.renew()

    assert isinstance(new_poll(), SelectPoll)
    client.close()


def test_a_closed_descriptor_counts_as_readable(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    number = pair[0].fileno()
    pair[0].close()

    assert is_readable(number)
