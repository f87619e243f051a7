"""A call for several locks ends late, because of the locks it has to release or of another request."""

from __future__ import annotations

import contextlib

import pytest

from holdfast.errors import HoldfastError
from holdfast_lab.checking import history as h
from holdfast_lab.sim.cancellation import LossyLink, LostReply
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld

NAMES = ("x", "y", "z")


class Silence(LostReply):
    """Loses every reply after `begin`."""

    _is_silent = False

    def begin(self, number: int | None) -> None:
        self._is_silent = True

    def is_next(self) -> bool:
        return self._is_silent


class TwoClients(SmallWorld):
    """`b` holds the last of the locks; one reply to `a` is lost, or all of them."""

    def __init__(self, lost: int | None) -> None:
        super().__init__(Plan(backend="memory"), Choices(decisions=()))
        self.lost = Silence() if lost is None else LostReply()
        self.lease: SimLease | None = None
        self._number = lost

    def link(self, process: Process) -> Link:
        return LossyLink(process, self.server, self.lost) if process.name == "a" else super().link(process)

    async def hold(self, b: ClientProcess) -> None:
        self.lease = await b.client.acquire(b.client.lock(NAMES[-1], options={"ttl": 300.0}), None)

    async def acquire_all(self, a: ClientProcess, timeout: float) -> None:
        await a.client.runtime.sleep(1.0)
        self.lost.begin(self._number)
        with contextlib.suppress(HoldfastError):  # the outcome is in the history
            await a.client.acquire_all([a.client.lock(name, options={"ttl": 300.0}) for name in NAMES], timeout)


@pytest.mark.parametrize("timeout", [0.0, 0.5])
@pytest.mark.parametrize("lost", [1, 2, 3, 4, None])
def test_a_lost_reply_delays_a_call_by_at_most_a_second_after_its_timeout(lost: int | None, timeout: float) -> None:
    world = TwoClients(lost)
    a, b = world.add("a"), world.add("b")
    b.start(world.hold(b))
    a.start(world.acquire_all(a, timeout))

    try:
        world.world.run(30.0)
    finally:
        world.end()

    failed = [event for event in world.recorder.history if isinstance(event, h.AcquireFailed)]
    assert len(failed) == len(NAMES)
    assert failed[0].at - 1.0 < (max(timeout, 1.0) + 0.1 if lost is None else timeout + 1.1)
    if lost is None:
        return  # the release may not have arrived either
    assert [entry.lock for entry in world.server.live().values()] == [NAMES[-1]]
