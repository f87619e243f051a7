"""PostgreSQL for threads: statements on the caller's own thread, hints on one listening thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.postgresql.address import Server, place_of
from holdfast.backends.postgresql.database import Database
from holdfast.backends.postgresql.lines import READ, WRITE
from holdfast.backends.postgresql.methods import backend_on
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.url import Address

CREATE_MAX = 30.0  # seconds
JOIN_MAX = 1.0  # seconds: the listening thread ends at once, unless it is just connecting; then by itself, soon


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    place = place_of(address)
    port = Database(place, BlockingEyes(), Threads(), runtime)
    return backend_on(place, port, runtime)


def create_tables(address: Address) -> None:
    """For `holdfast init`."""
    database = Database(place_of(address), BlockingEyes(), Threads(), ThreadRuntime())
    run_sync(database.create_tables(deadline=system.now() + CREATE_MAX))


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

    async def addresses(self, server: Server, deadline: float) -> list[str]:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
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
