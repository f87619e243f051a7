"""The protected resource: a number for each lock, which holders read, increase and write back with their fence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_lab.checking import history as h

if TYPE_CHECKING:
    from holdfast_lab.sim.client import SimLease
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.world import World


class Resource:
    """Refuses a fence that is older than the newest one seen."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        self._world = world
        self._recorder = recorder
        self._values: dict[str, int] = {}
        self._newest: dict[str, int] = {}

    def state(self) -> object:
        """Its whole state, for comparison."""
        return self._values, self._newest

    def read(self, process: Process, lease: SimLease) -> int | None:
        """The value, or None if the fence is refused."""
        accepted = self._accepts(lease)
        value = self._values.get(lease.name, 0)
        fields = (self._world.now, process.name, lease.call, lease.name, lease.fence)
        self._recorder.add(h.Read(*fields, value, accepted))
        return value if accepted else None

    def write(self, process: Process, lease: SimLease, value: int, before: int) -> None:
        accepted = self._accepts(lease)
        if accepted:
            self._values[lease.name] = value
        fields = (self._world.now, process.name, lease.call, lease.name, lease.fence)
        self._recorder.add(h.Wrote(*fields, value, accepted, before))

    def _accepts(self, lease: SimLease) -> bool:
        newest = self._newest.get(lease.name, lease.fence)
        self._newest[lease.name] = max(newest, lease.fence)
        return lease.fence >= newest
