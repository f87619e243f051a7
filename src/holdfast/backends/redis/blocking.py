"""Redis for threads: requests on the caller's own thread, hints on one listening thread for each server."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis import replies
from holdfast.backends.redis.acquaintance import Acquaintance
from holdfast.backends.redis.address import Login, Node, Place, place_of
from holdfast.backends.redis.listening import Hints
from holdfast.backends.redis.protocol import backend_on
from holdfast.backends.redis.resp import new_parser, pack
from holdfast.backends.redis.sockets import SocketLines, SocketWire, connect
from holdfast.backends.redis.topology import Topology, topology_of
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Reply
    from holdfast.backends.redis.wire import Lines, Meet
    from holdfast.core.ports import Backend
    from holdfast.errors import OutcomeUnknown
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

JOIN_MAX = 1.0  # seconds: a listening thread ends at once, unless it is just connecting; then by itself, soon
_SEND_MAX = 1.0  # seconds for a few bytes
_READ_SIZE = 65536


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address, is_asyncio=False)
    return backend_on(open_port(place, runtime), place, runtime)


def open_port(place: Place, runtime: ThreadRuntime) -> Topology:
    """One deployment, used by the threads of one client."""

    def open_lines(login: Login, db: int, meet: Meet | None) -> Lines:
        return SocketLines(place, login, db, runtime, meet)

    port = topology_of(place, Acquaintance(place), runtime, open_lines)
    port.hints = Hints(place, port, ThreadEars(place, runtime), runtime)
    return port


class ThreadEars:
    """A daemon thread for each server that is listened to."""

    def __init__(self, place: Place, runtime: ThreadRuntime) -> None:
        self._place, self._runtime = place, runtime
        self._threads: list[threading.Thread] = []
        self._open: list[SocketEar] = []

    async def open(self, node: Node, deadline: float) -> SocketEar:
        wire = SocketWire(self._place, node, self._runtime)
        timeout = deadline - self._runtime.now()
        wire.plug_in(connect(self._place, self._place.login_of(node), node, db=0, timeout=timeout))
        await wire.ask(pack("CLIENT", "SETNAME", self._place.client_name), 1, deadline)
        self._open = [one for one in self._open if not one.is_closed]
        ear = SocketEar(wire.unplug(), node, self._place, self._runtime)
        self._open.append(ear)
        return ear

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = threading.Thread(target=lambda: run_sync(work()), name="holdfast-listener", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        thread.start()
        self._threads.append(thread)

    async def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_MAX)

    def abandon(self) -> None:
        for ear in self._open:
            ear.abandon()


class SocketEar:
    """One connection that is listened on, and a bell beside it: nobody but its listener may touch a TLS connection."""

    def __init__(self, sock: socket.socket, node: Node, place: Place, runtime: ThreadRuntime) -> None:
        self._sock, self._node, self._place, self._now = sock, node, place, runtime.now
        self._parser = new_parser()
        self._heard_bell, self._bell = socket.socketpair()
        self._bell.settimeout(0)
        self._heard_bell.settimeout(0)
        sock.settimeout(0)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._heard_bell, select.POLLIN)
        self.is_closed = False

    def send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(_SEND_MAX)
            self._sock.sendall(data)
            self._sock.settimeout(0)
        except OSError as error:
            raise self._broken(error) from error

    async def receive(self, until: float) -> list[Reply]:
        while True:
            if self._read():
                said = []
                while (reply := self._parser.gets()) is not False:
                    said.append(reply)
                if said:
                    return said
                continue
            left = until - self._now()
            if left <= 0.0:
                return []
            for descriptor, _ in self._poll.poll(left * 1000):
                if descriptor == self._heard_bell.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._heard_bell.recv(_READ_SIZE)
                    return []

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # closed, or full of rings that nobody has answered yet
            self._bell.send(b"!")

    def close(self) -> None:
        self.is_closed = True
        for one in (self._sock, self._bell, self._heard_bell):
            with contextlib.suppress(OSError):
                one.close()

    def abandon(self) -> None:
        """In a forked child: the descriptors only."""
        for one in (self._sock, self._bell, self._heard_bell):
            with contextlib.suppress(OSError):
                os.close(one.detach())

    def _broken(self, error: OSError) -> OutcomeUnknown:
        return replies.no_answer(self._place.url, self._node, f"the connection broke while we listened: {error}")

    def _read(self) -> bool:
        """Whether there was something. Read before waiting: TLS may have read ahead of what it hands out."""
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise replies.no_answer(self._place.url, self._node, "the server closed the connection while we listened")
        self._parser.feed(data)
        return True
