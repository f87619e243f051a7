"""Redlock for threads: all nodes are written to before the first is read from, on the caller's own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.blocking import ThreadEars
from holdfast.backends.redis.listening import Hints
from holdfast.backends.redis.sockets import SocketLines
from holdfast.backends.redlock.address import council_of
from holdfast.backends.redlock.census import Census
from holdfast.backends.redlock.nodes import Nodes
from holdfast.backends.redlock.protocol import RedlockBackend

if TYPE_CHECKING:
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> RedlockBackend:
    council = council_of(address, is_asyncio=False)
    place, census = council.place, Census(council.place, runtime)
    port = Nodes(place, SocketLines(place, place.login, place.db, runtime, census.meet), census, runtime)
    port.ears = ThreadEars(place, runtime)
    port.hints = Hints(place, port, port.ears, runtime)
    return RedlockBackend(council, port, runtime)
