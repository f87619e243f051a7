"""Opens the TCP sockets of all backends: with the same options, before a deadline, and never shared with a child."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl

from holdfast.backends.net.addresses import addresses_of
from holdfast.backends.net.poller import READ, WRITE, Poller
from holdfast.runtimes import system

# A peer that vanished silently (a NAT or a virtual address that moved) is detected on an idle connection after 15 to
# 20 s, and 5 s after the first unacknowledged data was sent: no request waits longer.
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 10, 5, 3  # seconds, seconds, probes
USER_TIMEOUT_MS = 5000
_OPTIONS = (
    ("TCP_NODELAY", 1),
    ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
    ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
    ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
)
_ADVICE = {errno.ECONNREFUSED: "connection refused: is the server running?"}
_IN_PROGRESS = (0, 36, 115, 10035)  # EINPROGRESS, on macOS, Linux and Windows

# Every socket opened here, by its descriptor; device and inode distinguish it from a later one with the same number. A
# forked child replaces them by /dev/null. A socket that another thread was opening belongs to no connection object yet;
# without this the child would keep it open, and the server would take the child for its client.
_opened: dict[int, tuple[int, int]] = {}


async def open_socket(
    host: str, port: int, poller: Poller, deadline: float, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """A connected, non-blocking socket, with TLS if a context is given.

    Raises:
        OSError: the host has no address, no address can be reached or trusted, or the time is up (a TimeoutError).
    """
    addresses = await addresses_of(host, poller, deadline)
    failure: OSError = OSError("the host has no address")
    for number, address in enumerate(addresses):
        # Divide the time, because an address that does not answer must leave time to try the others.
        now = system.now()
        until = now + (deadline - now) / (len(addresses) - number)
        try:
            sock = await _connect(address, port, poller, until)
            return sock if tls is None else await wrap_tls(sock, tls, host, poller, until)
        except OSError as error:
            failure = error
    raise failure


async def _connect(address: str, port: int, poller: Poller, until: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        set_options(sock)
        status = sock.connect_ex(_sockaddr(address, port))
        if status not in _IN_PROGRESS:
            raise OSError(status, _ADVICE.get(status) or os.strerror(status))
        if not await poller.poll([(sock.fileno(), WRITE)], until):
            raise TimeoutError("no answer in time")
        status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            raise OSError(status, _ADVICE.get(status) or os.strerror(status))
    except BaseException:
        sock.close()
        raise
    return sock


def set_options(sock: socket.socket) -> None:
    """Make the socket non-blocking, set the options of all our connections, and close it in forked children."""
    if hasattr(os, "fork"):  # without fork(), fstat() may not accept the descriptor of a socket
        _opened[sock.fileno()] = _identity(sock.fileno())
    sock.setblocking(False)  # noqa: FBT003 (its name says it)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def wrap_tls(sock: socket.socket, tls: ssl.SSLContext, name: str, poller: Poller, until: float) -> ssl.SSLSocket:
    """TLS on this socket. If that fails, the socket is closed."""
    to_close = sock
    try:
        to_close = secure = tls.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        await _handshake(secure, poller, until)
    except BaseException:
        to_close.close()
        raise
    return secure


async def _handshake(secure: ssl.SSLSocket, poller: Poller, until: float) -> None:
    while True:
        try:
            secure.do_handshake()
        except ssl.SSLWantReadError:
            events = READ
        except ssl.SSLWantWriteError:
            events = WRITE
        else:
            return
        if not await poller.poll([(secure.fileno(), events)], until):
            raise TimeoutError("no answer in time")


def _sockaddr(address: str, port: int) -> tuple[str | int, ...]:
    host, _, zone = address.partition("%")
    if not zone:
        return address, port
    return host, port, 0, int(zone) if zone.isdigit() else socket.if_nametoindex(zone)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _disconnect() -> None:
    """In a forked child: replace every inherited socket by /dev/null."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _opened.items():
        with contextlib.suppress(OSError):  # it is closed
            if _identity(descriptor) == identity:
                os.dup2(devnull, descriptor, inheritable=False)
    _opened.clear()
    os.close(devnull)


system.after_fork_in_child(_disconnect)
