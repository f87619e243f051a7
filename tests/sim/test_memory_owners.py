"""The reference protocol's named owners: one who was let in past others, and has lapsed since, comes again."""

from __future__ import annotations

from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.tickets import Ticket, Waiting
from holdfast.sim.choices import Choices
from holdfast.sim.run import Plan
from holdfast.sim.scenarios import SmallWorld
from holdfast.sim.servers.memory import MemoryServer

TTL = 3.0


class Steps:
    """The steps of one backend on its store, at moments of our own."""

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


def ticket(nonce: str, owner: str) -> Ticket:
    return Ticket("lock", nonce, TTL, 1, exclusive=True, agent="", info="{}", owner=owner)


def lapsed_behind_another() -> tuple[Steps, int]:
    """`kin` was let in past `other`, both of its owner ended, and `other` got in; its fence."""
    steps = Steps()
    first = steps.try_acquire(0.0, "first", "x")
    assert isinstance(steps.try_acquire(0.0, "other", "y"), Waiting)
    assert steps.try_acquire(0.0, "kin", "x") == first
    assert steps.release(1.0, "first", "x")
    assert isinstance(steps.try_acquire(2.0, "other", "y"), Waiting)
    fence = steps.try_acquire(TTL, "other", "y")
    assert isinstance(fence, int)
    return steps, fence


def test_a_lapsed_ticket_that_comes_again_waits_for_who_was_let_in_since() -> None:
    steps, _ = lapsed_behind_another()

    assert isinstance(steps.try_acquire(TTL + 1, "kin", "x"), Waiting)


def test_a_lapsed_ticket_that_is_let_in_again_has_a_fence_of_its_own() -> None:
    steps, fence = lapsed_behind_another()
    steps.release(TTL + 1, "other", "y")

    again = steps.try_acquire(TTL + 2, "kin", "x")

    assert isinstance(again, int)
    assert again > fence


def test_a_lapsed_ticket_is_not_renewed_beside_who_was_let_in_since() -> None:
    steps, _ = lapsed_behind_another()

    assert not steps.renew(TTL + 1, "kin", "x")
    assert steps.renew(TTL + 1, "other", "y")
