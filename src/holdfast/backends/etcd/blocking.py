"""etcd for threads: calls on the caller's own thread, changes heard on one listening thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.address import Node, place_of
from holdfast.backends.etcd.cluster import Cluster
from holdfast.backends.etcd.methods import backend_on
from holdfast.backends.etcd.wires import READ, WRITE
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address

JOIN_MAX = 1.0  # seconds: the listening thread ends at once, unless it is just connecting; then by itself, soon


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    return backend_on(Cluster(place, BlockingEyes(), Threads(), runtime), place, runtime)


class BlockingEyes:
    """Waits where it is asked to."""

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        poll = select.poll()
        for descriptor, events in wanted:
            poll.register(
                descriptor, (select.POLLIN if events & READ else 0) | (select.POLLOUT if events & WRITE else 0)
            )
        left = until - system.now()
        return [descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)]

    async def addresses(self, node: Node, deadline: float) -> list[str]:
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]


class Threads:
    """A daemon thread for the listener."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = threading.Thread(target=lambda: run_sync(work()), name="holdfast-listener", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        thread.start()
        self._threads.append(thread)

    async def join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_MAX)
