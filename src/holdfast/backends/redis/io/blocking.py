"""Redis for threads: requests on the caller's own thread, hints on one listening thread for each server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.config import Login, Node, Place, place_of
from holdfast.backends.redis.io.handshake import Acquaintance
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redis.io.sockets import SocketLines, SocketWire, connect
from holdfast.backends.redis.io.subscriber import Hints
from holdfast.backends.redis.io.subscriber_connection import SocketEar
from holdfast.backends.redis.io.topology import Topology, topology_of
from holdfast.backends.redis.protocol.queue import backend_on
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.backends.redis.io.connection import Lines, Meet
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

JOIN_MAX = 1.0  # seconds: a listening thread ends at once, unless it is just connecting; then by itself, soon


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
        sock = wire.unplug()
        try:
            ear = SocketEar(sock, node, self._place, self._runtime)
        except BaseException:
            sock.close()
            raise
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
