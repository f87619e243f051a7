"""Who stands still keeps the others out for ever."""

from __future__ import annotations

import pytest

from holdfast.sim.choices import Choices
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.run import Plan, quiet
from holdfast.sim.small import Party, SmallWorld

TTL = 3.0


class Takers:
    """A world in which everybody wants the same lock."""

    def __init__(self, plan: Plan) -> None:
        self.small = SmallWorld(plan, Choices(tape=()))
        self.granted: dict[str, float] = {}
        self.parties: dict[str, Party] = {}

    def take(self, name: str, holds: float = 1000.0) -> None:
        party = self.parties[name] = self.small.add(name)

        async def take() -> None:
            lease = await party.client.acquire(party.lock(TTL), None)
            self.granted[name] = self.small.world.now
            if lease is not None:
                await party.client.runtime.sleep(holds)
                await party.client.release(lease)

        party.start(take())

    def run(self, until: float) -> None:
        with quiet():
            self.small.world.run(until)


def behind_a_stopped_holder(plan: Plan) -> float | None:
    """How long the next one waits; None: half a minute was not enough."""
    takers = Takers(plan)
    takers.take("a")
    takers.run(1.0)
    takers.parties["a"].process.pause()
    takers.take("b")
    takers.run(31.0)
    takers.small.end()
    assert "a" in takers.granted
    return takers.granted["b"] - 1.0 if "b" in takers.granted else None


def behind_a_stopped_waiter(plan: Plan) -> float | None:
    """Likewise, if it is stopped before its turn comes."""
    takers = Takers(plan)
    takers.take("a", holds=2.0)
    takers.run(0.5)
    takers.take("b")
    takers.run(1.0)
    takers.parties["b"].process.pause()
    takers.take("c")
    takers.run(31.0)
    takers.small.end()
    assert set(takers.granted) <= {"a", "c"}
    return takers.granted["c"] - 2.0 if "c" in takers.granted else None


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_who_stands_still_in_the_lock_keeps_it_until_its_lease_is_over_and_no_longer(backend: str) -> None:
    waited = behind_a_stopped_holder(Plan(backend=backend))

    assert waited is not None
    assert 1.0 < waited < TTL + 3.0


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_who_stands_still_in_line_holds_up_the_others_for_seconds_only(backend: str) -> None:
    waited = behind_a_stopped_waiter(Plan(backend=backend))

    assert waited is not None
    assert waited < 12.0


def test_a_gate_that_nobody_is_expelled_from_stays_shut() -> None:
    plan = MUTANTS["row-nobody-is-expelled"].apply(Plan())

    assert behind_a_stopped_holder(plan) is None
