"""The memory protocol on a simulated server: the reference protocol under all faults of a network.

memory:// is never used over a network. The model tests the engine, because every remote store has this shape: one
server, atomic steps, leases on the clock of the server, wake-ups that may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.memory.port import QueueEntry, Store
from holdfast.backends.memory.protocol.guarantees import GUARANTEES
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")


class MemoryServer(Server):
    """A store that never loses data."""

    guarantees = GUARANTEES
    # A `try_acquire` can arrive after the release of its ticket: on another connection, which the server reads later.
    orphaning_faults = frozenset({"crash", "duplicate", "slow", "stall"})
    excluded_faults = frozenset({"step_clock", "leap_clock"})
    duplicates_requests = True
    backend: Callable[..., Backend] = MemoryBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.store = Store()

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        return type(self).backend("sim://memory", _Port(self, link, runtime), runtime)

    def tickets(self) -> dict[str, Entry]:
        return {nonce: _entry(entry) for queue in self.store.queues.values() for nonce, entry in queue.items()}

    def live(self) -> dict[str, Entry]:
        return {
            nonce: _entry(entry)
            for queue in self.store.queues.values()
            for nonce, entry in queue.items()
            if entry.expires > self.world.now
        }

    def state(self) -> object:
        return (
            self.store.process_state.last_number,
            self.store.process_state.registers,
            self.store.process_state.records,
            [
                (name, nonce, entry.number, entry.fence, entry.granted, entry.since, entry.expires)
                for name, queue in self.store.queues.items()
                for nonce, entry in queue.items()
            ],
        )

    def break_lock(self, name: str, fence: int) -> None:
        queue = self.store.queues.get(name, {})
        self.execute(lambda: [queue.pop(nonce) for nonce, entry in list(queue.items()) if entry.fence == fence])


class _Port:
    """A MemoryPort whose steps cross the network."""

    def __init__(self, server: MemoryServer, link: Link, runtime: SimRuntime) -> None:
        self._server = server
        self._link = link
        self._runtime = runtime
        self.wakeups = Wakeups(runtime)

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        return await self._link.request(lambda: self._on_server(step), deadline)

    def wake(self, notification: Notification) -> None:
        self._link.notify(self.wakeups.wake, notification)

    def _on_server(self, step: Callable[[Store], T]) -> T:
        """Run the step with the clock of the server, because it reads the time from its runtime."""
        runtime, client_clock = self._runtime, self._runtime.clock
        runtime.clock = self._server_now
        try:
            return step(self._server.store)
        finally:
            runtime.clock = client_clock

    def _server_now(self) -> float:
        return self._server.world.now


def _entry(entry: QueueEntry) -> Entry:
    claim = entry.claim
    return Entry(claim.name, entry.number, entry.fence if entry.granted else None, claim.limit, claim.exclusive)
