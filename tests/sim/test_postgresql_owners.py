"""Owners that are in with strangers, several locks of which one is left, marks that two have raised.

All in worlds that lose and delay messages.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from holdfast.core.ports import Backend
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast.sim.choices import Choices
from holdfast.sim.faults import Faults
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.network import Link
from holdfast.sim.process import Process
from holdfast.sim.run import Plan, quiet
from holdfast.sim.scenarios import LOCK, ClientProcess, SmallWorld
from holdfast.sim.servers.postgresql.server import PostgresqlServer

LOSSY = Faults(slow=0.05, slow_max=3.0, lose_request=0.05, lose_reply=0.1, lose_notification=0.2)
OWNERS = ("job", "job", "another", "")
ANSWERED_MAX = 1.0  # seconds that a request is waited for
TTL, HOLD_MAX = 4.0, 3.0
WORLDS = 60
PLAN = Plan(backend="postgresql")


class LossyWorld(SmallWorld):
    """Clients that drive the backend's verbs themselves, each again until it is answered."""

    def link(self, process: Process) -> Link:
        return Link(process, self.server, LOSSY)


@contextmanager
def living(plan: Plan, seed: int, clients: int) -> Iterator[tuple[LossyWorld, list[ClientProcess]]]:
    with quiet():
        world = LossyWorld(plan, Choices(seed))
        yield world, [world.add(f"client-{number}") for number in range(clients)]
        world.end()


def backend_of(member: ClientProcess) -> Backend:
    return member.client.engine.backend


async def answered(member: ClientProcess, verb: Any) -> Any:
    """What it says in the end."""
    while True:
        try:
            return await verb(member.client.runtime.now() + ANSWERED_MAX)
        except OutcomeUnknown:
            continue


class Witness:
    """Sees who believes to be in, and says what is wrong with that."""

    def __init__(self, world: LossyWorld, members: list[ClientProcess]) -> None:
        self._world = world
        self._parties = members
        self._inside: dict[str, tuple[str, int]] = {}  # nonce -> owner, fence
        self._last = ("", 0)  # the highest fence, and whose it was
        self.together = 0  # how often two were in at once
        self.rounds = 0
        self.wrong: list[str] = []

    async def work(self, member: ClientProcess) -> None:
        choices, runtime = self._world.choices, member.client.runtime
        backend = backend_of(member)
        for _ in range(4):
            await runtime.sleep(choices.between(0.0, 2.0))
            ticket = Ticket(
                *(LOCK, runtime.nonce(), TTL, 1, True, "main", '{"who": {}, "meta": {}}'), owner=choices.pick(OWNERS)
            )
            granted = await self._try_acquire(member, ticket)
            if granted.deadline > runtime.now():
                self._look(ticket, granted.fence)
                held = choices.between(0.0, HOLD_MAX)
                await runtime.sleep(min(held, granted.deadline - runtime.now()))
                del self._inside[ticket.nonce]
            # One in four is forgotten, as by a process that dies: it runs out.
            if choices.below(4):
                await answered(member, lambda until, ticket=ticket: backend.release([ticket], deadline=until))
            self.rounds += 1

    async def _try_acquire(self, member: ClientProcess, ticket: Ticket) -> Granted:
        backend, runtime = backend_of(member), member.client.runtime
        while True:
            outcome = await answered(member, lambda until: backend.try_acquire(ticket, queue=True, deadline=until))
            if isinstance(outcome, Granted):
                return outcome
            assert isinstance(outcome, Waiting)
            await backend.wait(ticket, runtime.now() + outcome.poll_after)

    def _look(self, ticket: Ticket, fence: int) -> None:
        for owner, other in self._inside.values():
            if not owner or owner != ticket.owner:
                self.wrong.append(f"{ticket.owner!r} is in while {owner!r} is")
            elif fence != other:
                self.wrong.append(f"two of {owner!r} are in with {fence} and {other}")
            else:
                self.together += 1
        owner, highest = self._last
        if fence < highest or (fence == highest and (not owner or owner != ticket.owner)):
            self.wrong.append(f"{ticket.owner!r} has the fence {fence} after {owner!r} had {highest}")
        self._last = max((ticket.owner, fence), self._last, key=lambda one: one[1])
        self._inside[ticket.nonce] = (ticket.owner, fence)


def lived(plan: Plan, seed: int) -> Witness:
    with living(plan, seed, clients=4) as (world, members):
        witness = Witness(world, members)
        for member in members:
            member.start(witness.work(member))
        world.world.run(200.0)
        assert isinstance(world.server, PostgresqlServer)
        if witness.rounds < 16:
            witness.wrong.append("not everybody got in")
        if world.server.live():
            witness.wrong.append("somebody is left")
        return witness


def test_those_of_one_owner_are_in_together_and_nobody_else_is() -> None:
    together = 0
    for seed in range(WORLDS):
        witness = lived(PLAN, seed)
        assert not witness.wrong, seed
        together += witness.together

    assert together > WORLDS


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = tuple("abcdef")
LONG = 120.0  # seconds: what is left behind is there in the end


async def take_several(member: ClientProcess, choices: Choices, inside: dict[str, str], wrong: list[str]) -> None:
    backend, runtime = backend_of(member), member.client.runtime
    for _ in range(6):
        names = [name for name in NAMES if choices.below(2)] or ["a"]
        owner = choices.pick(OWNERS)
        about = (LONG, 1, True, "main", '{"who": {}, "meta": {}}', 0.0, owner)
        tickets = [Ticket(name, runtime.nonce(), *about) for name in names]
        granted: list[Ticket] = []
        with suppress(OutcomeUnknown):
            outcomes = await backend.try_acquire_all(tickets, deadline=runtime.now() + ANSWERED_MAX)
            granted = [ticket for ticket, one in zip(tickets, outcomes, strict=False) if isinstance(one, Granted)]
        for ticket in granted:
            others = {inside[key] for key in inside if key.startswith(f"{ticket.name}:")}
            wrong += [f"{owner!r} is in while {other!r} is" for other in others if not owner or other != owner]
            inside[f"{ticket.name}:{ticket.nonce}"] = owner
        await runtime.sleep(choices.between(0.0, 2.0))
        for ticket in granted:
            del inside[f"{ticket.name}:{ticket.nonce}"]
        await answered(member, lambda until, tickets=tickets: backend.release(tickets, deadline=until))


def several(plan: Plan, seed: int) -> list[str]:
    """What is wrong."""
    wrong: list[str] = []
    with living(plan, seed, clients=3) as (world, members):
        inside: dict[str, str] = {}
        tasks = [member.start(take_several(member, world.choices, inside, wrong)) for member in members]
        world.world.run(60.0)
        assert all(task.is_done for task in tasks)
        assert isinstance(world.server, PostgresqlServer)
        wrong += [f"{entry.lock!r} is left" for entry in world.server.live().values()]
    return wrong


def test_of_several_locks_nobody_has_one_that_another_has_and_none_is_left() -> None:
    for seed in range(WORLDS):
        assert several(PLAN, seed) == [], seed


@pytest.mark.parametrize(
    ("name", "told"), [("acquires-past-the-queue", "is in while"), ("releases-not-remembered", "is left")]
)
def test_a_mutant_that_takes_several_wrongly_is_caught(name: str, told: str) -> None:
    plan = MUTANTS[name].apply(PLAN)

    assert any(told in one for seed in range(WORLDS) for one in several(plan, seed))


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def raised(plan: Plan, seed: int) -> list[list[bool]]:
    """For each of several numbers, what each of three clients is told that raises the mark to it."""
    told: list[list[bool]] = []
    with living(plan, seed, clients=3) as (world, members):
        for number in range(1, 5):
            answers: list[bool] = []
            told.append(answers)
            for member in members:
                member.start(_raise(member, number, answers))
            world.world.run(world.world.now + 30.0)
    return told


def _raise(member: ClientProcess, number: int, answers: list[bool]) -> Coroutine[Any, Any, None]:
    async def work() -> None:
        backend, nonce = backend_of(member), member.client.runtime.nonce()
        is_ours = await answered(
            member, lambda until: backend.advance_register("a", number, nonce=nonce, keep=3600.0, deadline=until)
        )
        answers.append(is_ours)
        (register,) = await answered(member, lambda until: backend.read_registers(["a"], deadline=until))
        assert register >= number

    return work()


@pytest.mark.parametrize("backend", ["postgresql", "postgresql-advisory"])
def test_exactly_one_is_told_that_it_raised_a_mark(backend: str) -> None:
    for seed in range(WORLDS):
        for answers in raised(Plan(backend=backend), seed):
            assert sorted(answers) == [False, False, True], seed


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG_IN = {
    "any-owner-joins": "is in while",
    "postgresql-owner-draws-again": "are in with",
    "owner-queued-behind": "is in while",
}


@pytest.mark.parametrize("name", WRONG_IN)
def test_a_mutant_that_lets_the_wrong_ones_in_is_caught(name: str) -> None:
    plan = MUTANTS[name].apply(PLAN)

    wrong = next((witness.wrong for seed in range(WORLDS) if (witness := lived(plan, seed)).wrong), [])

    assert any(WRONG_IN[name] in one for one in wrong), wrong


WRONGLY_TOLD = {"register-in-two-steps": {2, 3}, "register-without-nonce": {0}}


@pytest.mark.parametrize(("name", "told"), WRONGLY_TOLD.items())
def test_a_mutant_that_tells_the_wrong_number_of_callers_is_caught(name: str, told: set[int]) -> None:
    plan = MUTANTS[name].apply(PLAN)

    winners = {sum(answers) for seed in range(WORLDS) for answers in raised(plan, seed)}

    assert winners & told


def test_every_mutant_that_seeds_do_not_bring_out_is_here() -> None:
    left = {name for name, mutant in MUTANTS.items() if not mutant.by_seeds and mutant.backend == "postgresql"}

    # tests/sim/test_postgresql_worlds.py has these
    passed_over = {"dead-waiters-in-turn", "stopped-waiters-in-turn", "woken-keeps-its-lease"}
    assert left == {*WRONG_IN, *WRONGLY_TOLD, *passed_over}
