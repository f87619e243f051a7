"""Hazard: SQL that differs from the rule of the queue, also for owners, several locks, delays, registers and records.

The memory protocol is the reference in Python: the same random steps must have the same results, in two worlds with the
same clock. The steps must also detect SQL with a deliberate mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.sqlite.protocol import queue
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.sqlite import SimTransaction, SqliteServer
from tests.sim.test_redis_rule import Side, Steps

TTL, DELAY = 5.0, 3.0
BUDGET = 150  # sequences within which a mistake must be found


def steps_on(server: type[SqliteServer], seed: int) -> None:
    sides = [Side(Plan(backend="memory")), Side(Plan(backend="sqlite", server=server))]
    try:
        steps = Steps(sides, seed, shares=True, lapses=True, polls=True)
        for _ in range(80):
            steps.step()
        assert sides[0].steps == sides[1].steps, "several locks took more than one step"
    finally:
        for side in sides:
            side.end()


def with_mistake(sql: str, wrong: str) -> type[SqliteServer]:
    """The server with the statement `wrong` instead of `sql`."""

    class Transaction(SimTransaction):
        def row(self, sql_: str, *values: Any) -> tuple[Any, ...] | None:
            return super().row(wrong if sql_ == sql else sql_, *values)

        def rows(self, sql_: str, *values: Any) -> Iterator[tuple[Any, ...]]:
            return super().rows(wrong if sql_ == sql else sql_, *values)

        def change(self, sql_: str, *values: Any) -> int:
            return super().change(wrong if sql_ == sql else sql_, *values)

    return type("Wrong", (SqliteServer,), {"transaction": Transaction})


@pytest.mark.parametrize("seed", range(24))
def test_the_same_steps_have_the_same_results(seed: int) -> None:
    steps_on(SqliteServer, seed)


MISTAKES = {
    "a ticket that bypasses the queue is placed behind the others": (
        queue._FIRST,
        "SELECT max(number) + 2 FROM tickets WHERE name = ?",
    ),
    "an owner waits for its own tickets": (
        queue._SAME_OWNER,
        queue._SAME_OWNER.replace("owner = ?", "owner = ? || '?'"),
    ),
    "an owner is granted during another owner's lease": (
        queue._SAME_OWNER,
        queue._SAME_OWNER.replace("owner = ?", "owner <> ? || '?'"),
    ),
    "a break ends only one of an owner's tickets": (
        queue._BREAK,
        "DELETE FROM tickets WHERE number = (SELECT max(number) FROM tickets WHERE name = ? AND fence = ?)",
    ),
    "a register goes down": (
        queue._ADVANCE_REGISTER,
        queue._ADVANCE_REGISTER.replace("number < excluded.number OR", "TRUE OR"),
    ),
    "a register ignores the nonce": (
        queue._ADVANCE_REGISTER,
        queue._ADVANCE_REGISTER.replace("AND nonce = excluded.nonce", ""),
    ),
    "a record is kept forever": (
        queue._READ_RECORD,
        queue._READ_RECORD.replace("coalesce(expires > ?, until > ?)", "(? < ? OR TRUE)"),
    ),
    "a record is not removed": (queue._REMOVE_RECORD, queue._REMOVE_RECORD + " AND FALSE"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_sql_is_found(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    assert right != wrong

    with pytest.raises(AssertionError):
        for seed in (16, *range(BUDGET)):  # seed 16 finds the rarest at present
            steps_on(with_mistake(right, wrong), seed)


# ── deaths, which memory:// does not have ────────────────────────────────────────────────────────────────────────────


class Deaths:
    """The holder of a lock with a delay dies; two other clients want the lock."""

    def __init__(self, seed: int, server: type[SqliteServer] = SqliteServer) -> None:
        self._small = SmallWorld(Plan(backend="sqlite", server=server), Choices(seed=seed))
        holder, *others = (self._small.add(name) for name in ("holder", "first", "second"))
        self.expires_at = 0.0  # when the ttl of the holder has passed
        self.granted_at: list[float] = []
        world = self._small.world
        holder.start(self._hold(holder))
        for other in others:
            other.start(self._acquire(other))
        world.run(2.0 + self._small.choices.between(0.0, TTL))
        holder.process.crash()
        self._small.server.process_died(holder.process)
        # A process that opens the file later removes ended tickets first.
        late = self._small.add("late")
        late.start(self._acquire(late))
        world.run(world.now + 60.0)
        self._small.end()

    def _ticket(self, member: ClientProcess, **more: Any) -> Claim:
        nonce = self._small.recorder.new_nonce(member.process.name, 0)
        return Claim("lock", nonce, TTL, 1, exclusive=True, agent="", info="{}", **more)

    async def _hold(self, member: ClientProcess) -> None:
        backend, process = member.client.engine.backend, member.process
        ticket = self._ticket(member, delay=DELAY)
        await backend.try_acquire(ticket, queue=True, deadline=process.now() + 1.0)
        while True:
            self.expires_at = self._small.world.now + TTL
            await backend.renew([ticket], deadline=process.now() + 1.0)
            await member.client.engine.runtime.sleep(1.0)

    async def _acquire(self, member: ClientProcess) -> None:
        backend, runtime = member.client.engine.backend, member.client.engine.runtime
        ticket = self._ticket(member)
        await runtime.sleep(1.0)
        while isinstance(
            outcome := await backend.try_acquire(ticket, queue=True, deadline=runtime.now() + 1.0), Waiting
        ):
            await backend.wait(ticket, runtime.now() + outcome.poll_after)
        assert isinstance(outcome, Granted)
        self.granted_at.append(self._small.world.now)
        await backend.release([ticket], deadline=runtime.now() + 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_waiters_acquire_soon_after_the_delay_of_a_dead_holder_and_not_before(seed: int) -> None:
    deaths = Deaths(seed)

    assert len(deaths.granted_at) == 3
    assert deaths.expires_at <= min(deaths.granted_at)
    assert max(deaths.granted_at) < deaths.expires_at + 1.0


def test_a_cleanup_that_ignores_the_delay_is_found() -> None:
    wrong = with_mistake(queue._AHEAD, queue._AHEAD.replace("owner, delay", "owner, 0.0"))

    deaths = [Deaths(seed, wrong) for seed in range(20)]

    assert any(min(death.granted_at) < death.expires_at for death in deaths)
