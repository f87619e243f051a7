"""The memory protocol, on a server across a network: the reference protocol, under everything a network can do.

Nobody runs memory:// like this. But the engine does not know that, and this is the shape of every remote store: one
server, atomic steps, leases on its own clock, wake-ups that may get lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.memory.port import Place, Store
from holdfast.backends.memory.protocol.guarantees import GUARANTEES
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.sim.recorder import Entry
from holdfast.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.sim.network import Link
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

T = TypeVar("T")


class MemoryServer(Server):
    """A store that never forgets."""

    guarantees = GUARANTEES
    # An enter that comes after its own leave: on another connection, which the server reads later.
    orphaning_faults = frozenset({"crash", "duplicate", "slow", "stall"})
    excluded_faults = frozenset({"step_clock", "leap_clock"})  # a request may arrive twice here
    backend: Callable[..., Backend] = MemoryBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.store = Store()

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        return type(self).backend("sim://memory", _Port(self, link, runtime), runtime)

    def tickets(self) -> dict[str, Entry]:
        return {nonce: _entry(place) for queue in self.store.queues.values() for nonce, place in queue.items()}

    def live(self) -> dict[str, Entry]:
        return {
            nonce: _entry(place)
            for queue in self.store.queues.values()
            for nonce, place in queue.items()
            if place.expires > self.world.now
        }

    def state(self) -> object:
        return (
            self.store.lasting.last_number,
            self.store.lasting.marks,
            [
                (name, nonce, place.number, place.fence, place.granted, place.since, place.expires)
                for name, queue in self.store.queues.items()
                for nonce, place in queue.items()
            ],
        )

    def break_lock(self, name: str, fence: int) -> None:
        queue = self.store.queues.get(name, {})
        self.execute(lambda: [queue.pop(nonce) for nonce, place in list(queue.items()) if place.fence == fence])


class _Port:
    """A MemoryPort whose steps travel."""

    def __init__(self, server: MemoryServer, link: Link, runtime: SimRuntime) -> None:
        self._server = server
        self._link = link
        self._runtime = runtime
        self._wake: Callable[[str], None] = lambda _: None

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        return await self._link.request(lambda: self._at_the_server(step), deadline)

    def ring(self, nonce: str) -> None:
        self._link.notify(self._wake, nonce)

    def listen(self, wake: Callable[[str], None]) -> None:
        self._wake = wake

    def _at_the_server(self, step: Callable[[Store], T]) -> T:
        """The step asks its runtime for the time; over there it is the server's."""
        runtime, theirs = self._runtime, self._runtime.clock
        runtime.clock = self._server_now
        try:
            return step(self._server.store)
        finally:
            runtime.clock = theirs

    def _server_now(self) -> float:
        return self._server.world.now


def _entry(place: Place) -> Entry:
    ticket = place.ticket
    return Entry(ticket.name, place.number, place.fence if place.granted else None, ticket.limit, ticket.exclusive)
