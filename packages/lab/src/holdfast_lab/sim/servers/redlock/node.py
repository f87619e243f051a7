"""One of several Redis servers, with its own clock and restarts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.backends.redlock.config import RedlockConfig, config_of
from holdfast.url import Address
from holdfast_lab.checking import history as h
from holdfast_lab.sim.servers.base import EPOCH
from holdfast_lab.sim.servers.redis.port import PREFIX
from holdfast_lab.sim.servers.redis.server import RedisServer

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call
    from holdfast_lab.sim.recorder import Entry
    from holdfast_lab.sim.servers.redis.commands import Reply
    from holdfast_lab.sim.servers.redlock.server import RedlockServer

UP_FOR = 100_000.0  # uptime in seconds at the start of the world


class Node(RedisServer):
    """Requests, restarts and clocks belong to the node; the recorder sees all nodes together."""

    clusters = switches = 0.0

    def __init__(self, whole: RedlockServer, number: int) -> None:
        super().__init__(whole.world, whole.recorder)
        self.whole = whole
        self.number = number
        self.ahead = 0.0  # seconds that its clock is ahead of the true time at the start
        self.rate = 1.0  # speed of its clock
        self.started_at = EPOCH - UP_FOR  # by its own clock

    @property
    def name(self) -> str:
        return f"node {self.number}"

    @property
    def run_id(self) -> str:
        return f"run-{self.number}-{self.starts}"

    @property
    def uptime(self) -> int:
        """As in INFO: whole seconds, by the clock that can be set."""
        return math.floor(self.wall() - self.started_at)

    def wall(self) -> float:
        return EPOCH + self.ahead + self.world.now * self.rate + self.wall_step

    def run(self, call: Call) -> Reply:
        text = type(self.whole).texts.get(call.script.name, call.script.text)
        return self.machine.run(text, self._known(call.keys), call.arguments)

    def tickets(self) -> dict[str, Entry]:
        return self.whole.tickets()

    def restart(self) -> None:
        super().restart()
        self.started_at = self.wall()

    def restore_data(self) -> None:
        if self._copy is not None:
            self.machine.space = self._copy.snapshot()
            self.restart()
            self.recorder.observe(self.tickets())

    def state_lost(self, kind: h.StateKind, detail: str = "") -> list[h.Event]:
        return self.whole.forgets(self, kind, detail)

    def stall_event(self) -> h.Event:
        return self.whole.stall(self, begins=True)

    def stall_end_event(self) -> h.Event:
        return self.whole.stall(self, begins=False)


def config_for(nodes: int, *, max_ttl: float, quarantine: bool = True) -> RedlockConfig:
    """The configuration of a simulated client, as from the URL of this many nodes."""
    hosts = ",".join(f"node-{number}" for number in range(nodes))
    address = Address("redlock", hosts, "", {"prefix": PREFIX}, "sim://redlock")
    return replace(config_of(address, is_asyncio=False), max_ttl=max_ttl, quarantine=quarantine)
