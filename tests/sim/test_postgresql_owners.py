"""Hazard: different owners hold a lock together, one of several locks stays held, two clients advance a register.

The simulated network loses and delays messages.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import Faults
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import LOCK, ClientProcess, SmallWorld
from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer

LOSSY = Faults(slow=0.05, slow_max=3.0, lose_request=0.05, lose_reply=0.1, lose_notification=0.2)
OWNERS = ("job", "job", "another", "")
ANSWERED_MAX = 1.0  # seconds until a request is repeated
TTL, HOLD_MAX = 4.0, 3.0
WORLDS = 60
PLAN = Plan(backend="postgresql")


class LossyWorld(SmallWorld):
    """Clients that call the backend directly, and repeat each request until it is answered."""

    def link(self, process: Process) -> Link:
        return Link(process, self.server, LOSSY)


@contextmanager
def run_world(plan: Plan, seed: int, clients: int) -> Iterator[tuple[LossyWorld, list[ClientProcess]]]:
    with quiet():
        world = LossyWorld(plan, Choices(seed))
        yield world, [world.add(f"client-{number}") for number in range(clients)]
        world.end()


def backend_of(member: ClientProcess) -> Backend:
    return member.client.engine.backend


async def answered(member: ClientProcess, verb: Any) -> Any:
    """The answer, after as many attempts as needed."""
    while True:
        try:
            return await verb(member.client.runtime.now() + ANSWERED_MAX)
        except OutcomeUnknown:
            continue


class Witness:
    """Records which clients believe that they hold the lock, and reports errors."""

    def __init__(self, world: LossyWorld) -> None:
        self._world = world
        self._granted: dict[str, tuple[str, int]] = {}  # nonce -> owner, fence
        self._last = ("", 0)  # the highest fence, and its owner
        self.together = 0  # grants to an owner that held the lock already
        self.rounds = 0
        self.wrong: list[str] = []

    async def work(self, member: ClientProcess) -> None:
        choices, runtime = self._world.choices, member.client.runtime
        backend = backend_of(member)
        for _ in range(4):
            await runtime.sleep(choices.between(0.0, 2.0))
            ticket = Claim(
                *(LOCK, runtime.nonce(), TTL, 1, True, "main", '{"who": {}, "meta": {}}'), owner=choices.pick(OWNERS)
            )
            granted = await self._try_acquire(member, ticket)
            if granted.deadline > runtime.now():
                self._record_grant(ticket, granted.fence)
                held = choices.between(0.0, HOLD_MAX)
                await runtime.sleep(min(held, granted.deadline - runtime.now()))
                del self._granted[ticket.nonce]
            # One lease in four is not released, as if its process had died: it expires.
            if choices.below(4):
                await answered(member, lambda until, ticket=ticket: backend.release([ticket], deadline=until))
            self.rounds += 1

    async def _try_acquire(self, member: ClientProcess, ticket: Claim) -> Granted:
        backend, runtime = backend_of(member), member.client.runtime
        while True:
            outcome = await answered(member, lambda until: backend.try_acquire(ticket, queue=True, deadline=until))
            if isinstance(outcome, Granted):
                return outcome
            assert isinstance(outcome, Waiting)
            await backend.wait(ticket, runtime.now() + outcome.poll_after)

    def _record_grant(self, ticket: Claim, fence: int) -> None:
        for owner, other in self._granted.values():
            if not owner or owner != ticket.owner:
                self.wrong.append(f"{ticket.owner!r} is in while {owner!r} is")
            elif fence != other:
                self.wrong.append(f"two of {owner!r} are in with {fence} and {other}")
            else:
                self.together += 1
        owner, highest = self._last
        if fence < highest or (fence == highest and (not owner or owner != ticket.owner)):
            self.wrong.append(f"{ticket.owner!r} has the fence {fence} after {owner!r} had {highest}")
        self._last = max((ticket.owner, fence), self._last, key=lambda pair: pair[1])
        self._granted[ticket.nonce] = (ticket.owner, fence)


def run_owners(plan: Plan, seed: int) -> Witness:
    with run_world(plan, seed, clients=4) as (world, members):
        witness = Witness(world)
        for member in members:
            member.start(witness.work(member))
        world.world.run(200.0)
        assert isinstance(world.server, PostgresqlServer)
        if witness.rounds < 16:
            witness.wrong.append("a client was not granted the lock")
        if world.server.live():
            witness.wrong.append("a ticket still exists")
        return witness


def test_only_tickets_of_one_owner_hold_the_lock_together() -> None:
    together = 0
    for seed in range(WORLDS):
        witness = run_owners(PLAN, seed)
        assert not witness.wrong, seed
        together += witness.together

    assert together > WORLDS


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = tuple("abcdef")
LONG = 120.0  # seconds; a ticket that is not released still exists at the end


async def acquire_several(member: ClientProcess, choices: Choices, inside: dict[str, str], wrong: list[str]) -> None:
    backend, runtime = backend_of(member), member.client.runtime
    for _ in range(6):
        names = [name for name in NAMES if choices.below(2)] or ["a"]
        owner = choices.pick(OWNERS)
        about = (LONG, 1, True, "main", '{"who": {}, "meta": {}}', 0.0, owner)
        tickets = [Claim(name, runtime.nonce(), *about) for name in names]
        granted: list[Claim] = []
        with suppress(OutcomeUnknown):
            outcomes = await backend.try_acquire_all(tickets, deadline=runtime.now() + ANSWERED_MAX)
            granted = [
                ticket for ticket, outcome in zip(tickets, outcomes, strict=False) if isinstance(outcome, Granted)
            ]
        for ticket in granted:
            others = {inside[key] for key in inside if key.startswith(f"{ticket.name}:")}
            wrong += [f"{owner!r} is in while {other!r} is" for other in others if not owner or other != owner]
            inside[f"{ticket.name}:{ticket.nonce}"] = owner
        await runtime.sleep(choices.between(0.0, 2.0))
        for ticket in granted:
            del inside[f"{ticket.name}:{ticket.nonce}"]
        await answered(member, lambda until, tickets=tickets: backend.release(tickets, deadline=until))


def several(plan: Plan, seed: int) -> list[str]:
    """The errors."""
    wrong: list[str] = []
    with run_world(plan, seed, clients=3) as (world, members):
        inside: dict[str, str] = {}
        tasks = [member.start(acquire_several(member, world.choices, inside, wrong)) for member in members]
        world.world.run(60.0)
        assert all(task.is_done for task in tasks)
        assert isinstance(world.server, PostgresqlServer)
        wrong += [f"{entry.lock!r} is left" for entry in world.server.live().values()]
    return wrong


def test_several_locks_are_exclusive_and_all_released() -> None:
    for seed in range(WORLDS):
        assert several(PLAN, seed) == [], seed


@pytest.mark.parametrize(
    ("name", "expected"), [("acquires-past-the-queue", "is in while"), ("releases-not-remembered", "is left")]
)
def test_a_mutant_of_several_locks_is_caught(name: str, expected: str) -> None:
    plan = MUTANTS[name].apply(PLAN)

    assert any(expected in message for seed in range(WORLDS) for message in several(plan, seed))


# ── registers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def advance_registers(plan: Plan, seed: int) -> list[list[bool]]:
    """For each of several numbers: the answers to three clients that advance the register to it."""
    answers_by_number: list[list[bool]] = []
    with run_world(plan, seed, clients=3) as (world, members):
        for number in range(1, 5):
            answers: list[bool] = []
            answers_by_number.append(answers)
            for member in members:
                member.start(_advance(member, number, answers))
            world.world.run(world.world.now + 30.0)
    return answers_by_number


def _advance(member: ClientProcess, number: int, answers: list[bool]) -> Coroutine[Any, Any, None]:
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
def test_exactly_one_client_advances_a_register(backend: str) -> None:
    for seed in range(WORLDS):
        for answers in advance_registers(Plan(backend=backend), seed):
            assert sorted(answers) == [False, False, True], seed


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG_IN = {
    "postgresql-grants-any-owner": "is in while",
    "postgresql-repeat-draws-new-fence": "are in with",
    "owner-queued-behind": "is in while",
}


@pytest.mark.parametrize("name", WRONG_IN)
def test_a_mutant_of_owners_is_caught(name: str) -> None:
    plan = MUTANTS[name].apply(PLAN)

    wrong = next((witness.wrong for seed in range(WORLDS) if (witness := run_owners(plan, seed)).wrong), [])

    assert any(WRONG_IN[name] in message for message in wrong), wrong


WRONG_WINNER_COUNTS = {"register-in-two-steps": {2, 3}, "register-without-nonce": {0}}


@pytest.mark.parametrize(("name", "winner_counts"), WRONG_WINNER_COUNTS.items())
def test_a_mutant_of_registers_is_caught(name: str, winner_counts: set[int]) -> None:
    plan = MUTANTS[name].apply(PLAN)

    winners = {sum(answers) for seed in range(WORLDS) for answers in advance_registers(plan, seed)}

    assert winners & winner_counts


def test_every_mutant_that_seeds_do_not_catch_is_tested() -> None:
    not_by_seeds = {name for name, mutant in MUTANTS.items() if not mutant.by_seeds and mutant.backend == "postgresql"}

    in_test_postgresql_worlds = {"dead-waiters-in-turn", "stopped-waiters-in-turn", "woken-keeps-its-lease"}
    assert not_by_seeds == {*WRONG_IN, *WRONG_WINNER_COUNTS, *in_test_postgresql_worlds}
