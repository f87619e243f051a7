"""memcached in a simulated world: its clock ticks once a second unless the server is paused, and it may lose data.

Items expire by a monotonic clock: a change of the wall clock affects only the start time of the next run. Requests that
waited for a paused server may be executed before its clock has ticked again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

from holdfast.backends.memcached.port import ServerRun
from holdfast.backends.memcached.protocol.guarantees import GUARANTEES
from holdfast.backends.memcached.protocol.item import MemcachedBackend
from holdfast.backends.memcached.protocol.values import Value
from holdfast.guarantees import FenceOrder
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.memcached.machine import Machine
from holdfast_lab.sim.servers.memcached.port import NODE, SimPort

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.checking import history as h
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

PREFIX = "sim:"
PERIOD = 1.0007  # seconds between ticks: a timer is a little late each time, so the ticks drift
TICKS_LATE = 0.03  # seconds from the end of a pause to the next tick, at most


class MemcachedServer(Server):
    """One server. Its fences are checked for more than it promises: they depend on a wall clock only at a restart."""

    guarantees = GUARANTEES._replace(fence=FenceOrder.CLOCK_BOUNDED)
    orphaning_faults: ClassVar[frozenset[str]] = frozenset({"crash", "stall", "lose_data"})
    kinds = ("lock",)
    backend: ClassVar[type[MemcachedBackend]] = MemcachedBackend
    port: ClassVar[type[SimPort]] = SimPort

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.runs = 0
        self.machine: Machine
        self._ticked = 0.0  # when the clock ticked last
        self._start()

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        backend: Backend = type(self).backend(
            "sim://memcached", type(self).port(self, link), runtime, prefix=PREFIX, nodes=(NODE,)
        )
        return backend

    def respond(self, requests: bytes) -> bytes:
        self._tick()
        return self.machine.respond(requests)

    @property
    def run(self) -> ServerRun:
        """The current run, as its connections report it."""
        return ServerRun(self.machine.started, self.machine.pid)

    # ── contents ─────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        self._tick()
        entries = {}
        for key in list(self.machine.items):
            item = self.machine.find(key)
            value = None if item is None else Value.parse(item.value)
            if item is not None and value is not None:
                fence = value.fence or type(self).backend.fence_of(self.run, item.version)
                entries[value.nonce] = Entry(value.details()[3], fence, fence, 1, exclusive=True)
        return entries

    def live(self) -> dict[str, Entry]:
        return self.tickets()

    def state(self) -> object:
        return self.runs, self.machine.started, self.machine.time, self.machine.version, self.machine.items

    def break_lock(self, name: str, fence: int) -> None:
        def delete() -> None:
            for key, item in list(self.machine.items.items()):
                value = Value.parse(item.value)
                if value is not None and value.details()[3] == name:
                    del self.machine.items[key]

        self.execute(delete)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lose_data(self) -> None:
        """Evict one item, flush all items, or restart: a cache may do each of them."""
        which = self.world.choices.below(3)
        if which == 0 and self.machine.items:
            self.machine.evict(self.world.choices.pick(sorted(self.machine.items)))
        elif which == 1:
            self.machine.items.clear()
        else:
            self._start()
        self.recorder.observe(self.tickets())

    def stall_event(self) -> h.Event:
        self._tick(even_if_stalled=True)  # the clock ran until now
        return super().stall_event()

    def resume(self) -> None:
        self._ticked = self.world.now + self.world.choices.between(0.0, TICKS_LATE) - PERIOD
        super().resume()

    def _start(self) -> None:
        self.runs += 1
        self.machine = Machine(math.floor(self.wall()), pid=self.runs)
        self._began = math.floor(self.world.now)
        self._ticked = self.world.now

    def _tick(self, *, even_if_stalled: bool = False) -> None:
        now = self.world.now
        if now < self._ticked + PERIOD or (self.is_stalled and not even_if_stalled):
            return
        self._ticked = now - (now - self._ticked) % PERIOD
        self.machine.time = 2 + math.floor(self._ticked) - self._began
