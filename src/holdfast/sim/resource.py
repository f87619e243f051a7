"""What the locks protect: a number for each, which holders read, increase and write back, fence in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.checking import history as h

if TYPE_CHECKING:
    from holdfast.sim.client import SimLease
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.world import World


class Resource:
    """Refuses whoever comes with an older fence than somebody before."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        self._world = world
        self._recorder = recorder
        self._values: dict[str, int] = {}
        self._newest: dict[str, int] = {}

    def state(self) -> object:
        """All that it knows, to compare."""
        return self._values, self._newest

    def read(self, process: Process, lease: SimLease) -> int | None:
        """The value, or None: refused."""
        accepted = self._accepts(lease)
        value = self._values.get(lease.name, 0)
        here = (self._world.now, process.name, lease.call, lease.name, lease.fence)
        self._recorder.add(h.Read(*here, value, accepted))
        return value if accepted else None

    def write(self, process: Process, lease: SimLease, value: int, before: int) -> None:
        accepted = self._accepts(lease)
        if accepted:
            self._values[lease.name] = value
        here = (self._world.now, process.name, lease.call, lease.name, lease.fence)
        self._recorder.add(h.Wrote(*here, value, accepted, before))

    def _accepts(self, lease: SimLease) -> bool:
        newest = self._newest.get(lease.name, lease.fence)
        self._newest[lease.name] = max(newest, lease.fence)
        return lease.fence >= newest
