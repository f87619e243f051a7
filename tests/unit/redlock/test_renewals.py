"""A majority of the nodes responds, but fewer of them have the vote of a lease: then a renewal needs other nodes."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.core.tickets import Claim, Granted, Live
from holdfast.errors import BackendUnavailable, OutcomeUnknown, QuorumError
from holdfast_lab.sim.fence_model import ParkedPort, StoppedClock
from holdfast_lab.sim.servers.redlock.node import config_for

GRANTED, KEPT, FREE = [b"granted", b"7"], 1, 2
REFUSED = BackendUnavailable(backend="node", problem="connection refused")
UNANSWERED = OutcomeUnknown(backend="node", problem="no answer in time")
Requests = list[tuple[int, str]]


class FiveNodes:
    """A client of five nodes. A test receives its requests and sends the replies."""

    def __init__(self) -> None:
        self.clock, self.port = StoppedClock(), ParkedPort((0,) * 5)
        self.backend = RedlockBackend(config_for(5, max_ttl=60.0), self.port, self.clock)  # type: ignore[arg-type]
        self._claims: dict[str, Claim] = {}  # by name

    def claim(self, name: str) -> Claim:
        return self._claims.setdefault(name, Claim(name, name * 32, 30.0, 1, exclusive=True, agent="", info="{}"))

    def acquire(self, name: str, replies: Sequence[Any]) -> Requests:
        acquiring = self.backend.try_acquire(self.claim(name), queue=True, deadline=self.clock.now() + 5.0)
        requests: Requests = step(acquiring)
        assert isinstance(step(acquiring, replies), Granted)
        return requests

    def renew(self, name: str) -> Coroutine[Any, Any, Any]:
        return self.backend.renew([self.claim(name)], deadline=self.clock.now() + 5.0)


def step(coroutine: Coroutine[Any, Any, Any], replies: Sequence[Any] | None = None) -> Any:
    """The next requests of the coroutine: nodes and scripts. At its end, the result."""
    try:
        return [(number, call.script.name) for number, call in coroutine.send(replies)]
    except StopIteration as end:
        return end.value


def to(script: Any, *nodes: int) -> Requests:
    return [(number, script.name) for number in nodes]


@pytest.fixture
def nodes() -> FiveNodes:
    return FiveNodes()


def test_a_renewal_includes_an_unresponsive_node_if_the_lease_needs_its_vote(nodes: FiveNodes) -> None:
    assert nodes.acquire("a", [REFUSED, GRANTED, GRANTED, GRANTED, REFUSED]) == to(lua.ACQUIRE, 0, 1, 2, 3, 4)
    nodes.clock.time += 20.0  # so that the next call includes nodes 0 and 4 again
    nodes.acquire("b", [REFUSED, GRANTED, UNANSWERED, GRANTED, GRANTED])
    assert nodes.backend._health.responsive() == [1, 3, 4]

    renewing = nodes.renew("a")
    assert step(renewing) == to(lua.RENEW, 1, 3, 4, 2)
    assert step(renewing, [KEPT, KEPT, FREE, KEPT]) == to(lua.ACQUIRE, 4)
    (outcome,) = step(renewing, [GRANTED])

    assert isinstance(outcome, Live)
    assert nodes.backend._health.responsive() == [1, 2, 3, 4]


def test_a_renewal_omits_an_unresponsive_node_if_a_majority_without_it_has_the_vote(nodes: FiveNodes) -> None:
    nodes.acquire("a", [GRANTED] * 5)
    nodes.acquire("b", [UNANSWERED, GRANTED, GRANTED, GRANTED, GRANTED])

    assert step(nodes.renew("a")) == to(lua.RENEW, 1, 2, 3, 4)


def test_a_node_that_lost_its_vote_does_not_count_for_that_majority(nodes: FiveNodes) -> None:
    nodes.acquire("a", [GRANTED] * 5)
    nodes.acquire("b", [UNANSWERED, GRANTED, GRANTED, GRANTED, GRANTED])
    renewing = nodes.renew("a")
    step(renewing)
    (outcome,) = step(renewing, [KEPT, KEPT, FREE, FREE])
    assert isinstance(outcome, QuorumError)

    renewing = nodes.renew("a")
    assert step(renewing) == to(lua.RENEW, 1, 2, 3, 4, 0)
    assert step(renewing, [KEPT, KEPT, FREE, FREE, KEPT]) == to(lua.ACQUIRE, 3, 4)


def test_a_call_without_claims_sends_nothing(nodes: FiveNodes) -> None:
    nodes.acquire("a", [GRANTED] * 5)
    deadline = nodes.clock.now() + 5.0

    assert step(nodes.backend.release([], deadline=deadline)) == []
    assert step(nodes.backend.renew([], deadline=deadline)) == []
