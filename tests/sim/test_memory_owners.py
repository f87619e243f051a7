"""Hazard: a ticket of an owner that was granted before others, and has expired, is requested again."""

from __future__ import annotations

from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.tickets import Claim, Waiting
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import SmallWorld
from holdfast_lab.sim.servers.memory import MemoryServer

TTL = 3.0


class Steps:
    """The steps of one backend on its store, at chosen times."""

    def __init__(self) -> None:
        world = SmallWorld(Plan(backend="memory"), Choices(decisions=()))
        client = world.add("a").client
        assert isinstance(world.server, MemoryServer)
        assert isinstance(client.engine.backend, MemoryBackend)
        self.store, self.backend, self.runtime = world.server.store, client.engine.backend, client.runtime

    def try_acquire(self, at: float, nonce: str, owner: str) -> int | Waiting:
        self.runtime.clock = lambda: at
        return self.backend._try_acquire(self.store, ticket(nonce, owner), queue=True)

    def renew(self, at: float, nonce: str, owner: str) -> bool:
        self.runtime.clock = lambda: at
        return self.backend._renew(self.store, ticket(nonce, owner))

    def release(self, at: float, nonce: str, owner: str) -> bool:
        self.runtime.clock = lambda: at
        return self.backend._release(self.store, ticket(nonce, owner))


def ticket(nonce: str, owner: str) -> Claim:
    return Claim("lock", nonce, TTL, 1, exclusive=True, agent="", info="{}", owner=owner)


def expired_after_another() -> tuple[Steps, int]:
    """Steps after which `other` holds the lock, and its fence. `second` was granted before `other`, and has expired."""
    steps = Steps()
    first = steps.try_acquire(0.0, "first", "x")
    assert isinstance(steps.try_acquire(0.0, "other", "y"), Waiting)
    assert steps.try_acquire(0.0, "second", "x") == first
    assert steps.release(1.0, "first", "x")
    assert isinstance(steps.try_acquire(2.0, "other", "y"), Waiting)
    fence = steps.try_acquire(TTL, "other", "y")
    assert isinstance(fence, int)
    return steps, fence


def test_an_expired_ticket_waits_for_the_holder_that_followed_it() -> None:
    steps, _ = expired_after_another()

    assert isinstance(steps.try_acquire(TTL + 1, "second", "x"), Waiting)


def test_an_expired_ticket_that_is_granted_again_has_a_new_fence() -> None:
    steps, fence = expired_after_another()
    steps.release(TTL + 1, "other", "y")

    again = steps.try_acquire(TTL + 2, "second", "x")

    assert isinstance(again, int)
    assert again > fence


def test_an_expired_ticket_is_not_renewed_during_the_next_lease() -> None:
    steps, _ = expired_after_another()

    assert not steps.renew(TTL + 1, "second", "x")
    assert steps.renew(TTL + 1, "other", "y")
