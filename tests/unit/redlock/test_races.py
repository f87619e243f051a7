"""A renewal and a release of one lease at the same time: neither breaks the other, and no vote remains."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.backends.redis.port import Call
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.core.tickets import Claim, Granted, Live
from holdfast.errors import BackendUnavailable
from holdfast_lab.sim.fence_model import ParkedPort, StoppedClock
from holdfast_lab.sim.servers.redlock.node import config_for

TICKET = Claim("lock", "a" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
GRANTED = [b"granted", b"7"]
KEPT, FREE, GONE = 1, 2, 1


def step(coroutine: Coroutine[Any, Any, Any], replies: list[Any] | None = None) -> Any:
    """Run the coroutine to its next requests, and return them by node; or to its end, and return its result."""
    try:
        return dict(coroutine.send(replies))
    except StopIteration as end:
        return end.value


def scripts_of(calls: dict[int, Call]) -> dict[int, str]:
    return {number: call.script.name for number, call in calls.items()}


class Holder:
    """A client with a lease on two of three nodes. The third node can be reached again."""

    def __init__(self) -> None:
        self.clock, self.port = StoppedClock(), ParkedPort((0, 0, 0))
        self.backend = RedlockBackend(config_for(3, max_ttl=60.0), self.port, self.clock)  # type: ignore[arg-type]
        acquiring = self.backend.try_acquire(TICKET, queue=True, deadline=self.clock.now() + 5.0)
        step(acquiring)
        down = BackendUnavailable(backend="node-2", problem="connection refused")
        assert isinstance(step(acquiring, [GRANTED, GRANTED, down]), Granted)
        self.clock.time += 100.0

    def renew(self) -> Coroutine[Any, Any, Any]:
        return self.backend.renew([TICKET], deadline=self.clock.now() + 5.0)

    def release(self) -> Coroutine[Any, Any, Any]:
        return self.backend.release([TICKET], deadline=self.clock.now() + 5.0)

    def background_requests(self) -> dict[int, str]:
        """The requests of the background worker."""
        assert self.port.started, "no worker was started"
        return scripts_of(step(self.port.started[0]()))


@pytest.fixture
def holder() -> Holder:
    return Holder()


def test_a_vote_that_a_renewal_restores_during_a_release_is_released_too(holder: Holder) -> None:
    renewing, releasing = holder.renew(), holder.release()
    assert scripts_of(step(renewing)) == dict.fromkeys(range(3), lua.RENEW.name)
    assert scripts_of(step(releasing)) == dict.fromkeys(range(2), lua.RELEASE.name)

    repairs = step(renewing, [KEPT, KEPT, FREE])
    released = step(releasing, [GONE, GONE])

    assert scripts_of(repairs) == {2: lua.ACQUIRE.name}
    assert released == [True]
    assert holder.background_requests()[2] == lua.RELEASE.name
    renewing.close()


def test_a_vote_that_is_restored_after_the_release_is_released_too(holder: Holder) -> None:
    """The release may have arrived before the restored vote, on another connection."""
    first = holder.renew()
    step(first)
    step(first, [KEPT, KEPT, FREE])
    assert isinstance(step(first, [GRANTED])[0], Live)
    renewing, releasing = holder.renew(), holder.release()
    step(renewing)
    assert scripts_of(step(renewing, [KEPT, KEPT, FREE])) == {2: lua.ACQUIRE.name}
    assert scripts_of(step(releasing)) == dict.fromkeys(range(3), lua.RELEASE.name)

    assert step(releasing, [GONE, GONE, 0]) == [True]
    step(renewing, [GRANTED])

    assert holder.background_requests()[2] == lua.RELEASE.name
