"""Hazard: a stopped client blocks the others forever; two clients advance a register; two owners hold a lock."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from holdfast.core.locks import LockOptions
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.errors import BackendError, BackendUnavailable, LockLost
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.faults import CALM, Faults
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.mysql.server import MysqlServer

TTL = 3.0


class Contenders:
    """A world in which all clients want the same lock."""

    def __init__(self, plan: Plan) -> None:
        self.small = SmallWorld(plan, Choices(decisions=()))
        self.granted: dict[str, float] = {}
        self.members: dict[str, ClientProcess] = {}

    def take(self, name: str, holds: float = 1000.0) -> None:
        member = self.members[name] = self.small.add(name)

        async def take() -> None:
            lease = await member.client.acquire(member.lock(TTL), None)
            self.granted[name] = self.small.world.now
            if lease is not None:
                await member.client.runtime.sleep(holds)
                await member.client.release(lease)

        member.start(take())

    def run(self, until: float) -> None:
        with quiet():
            self.small.world.run(until)


def behind_a_stopped_holder(plan: Plan) -> float | None:
    """How long the next client waits; None if it waits more than half a minute."""
    contenders = Contenders(plan)
    contenders.take("a")
    contenders.run(1.0)
    contenders.members["a"].process.pause()
    contenders.take("b")
    contenders.run(31.0)
    contenders.small.end()
    assert "a" in contenders.granted
    return contenders.granted["b"] - 1.0 if "b" in contenders.granted else None


def behind_a_stopped_waiter(plan: Plan) -> float | None:
    """How long the next waiter waits if the waiter before it is stopped; None if it waits more than half a minute."""
    contenders = Contenders(plan)
    contenders.take("a", holds=2.0)
    contenders.run(0.5)
    contenders.take("b")
    contenders.run(1.0)
    contenders.members["b"].process.pause()
    contenders.take("c")
    contenders.run(31.0)
    contenders.small.end()
    assert set(contenders.granted) <= {"a", "c"}
    return contenders.granted["c"] - 2.0 if "c" in contenders.granted else None


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_a_stopped_holder_keeps_the_lock_until_its_lease_ends_and_no_longer(backend: str) -> None:
    waited = behind_a_stopped_holder(Plan(backend=backend))

    assert waited is not None
    assert 1.0 < waited < TTL + 3.0


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_a_stopped_waiter_blocks_the_others_for_a_few_seconds_only(backend: str) -> None:
    waited = behind_a_stopped_waiter(Plan(backend=backend))

    assert waited is not None
    assert waited < 12.0


# ── waiters of a client that is dead or stopped, a clock that is set back, a row that is deleted ─────────────────────

SKIPPED_MAX = 4.0  # seconds, as docs/backends/mysql.md states


def behind_the_waiters_of_one_client(plan: Plan, waiters: int, *, is_dead: bool) -> float | None:
    """How long a free lock is blocked if all waiters before the next one are of an unresponsive client.

    None if it is blocked for more than half a minute.
    """
    contenders = Contenders(plan)
    contenders.take("a", holds=2.0)
    contenders.run(0.5)
    member = contenders.small.add("b")

    async def wait() -> None:
        await member.client.acquire(member.lock(TTL), None)

    for _ in range(waiters):
        member.start(wait())
    contenders.run(1.0)
    contenders.take("c")
    contenders.run(1.5)
    if is_dead:
        member.process.crash()
        contenders.small.server.process_died(member.process)
    else:
        member.process.pause()
    contenders.run(32.0)
    contenders.small.end()
    assert set(contenders.granted) <= {"a", "c"}
    return contenders.granted["c"] - 2.0 if "c" in contenders.granted else None


@pytest.mark.parametrize("backend", ["mysql", "mysql-row"])
@pytest.mark.parametrize("waiters", [1, 4, 20])
@pytest.mark.parametrize("client", ["dead", "stopped"])
def test_all_waiters_of_an_unresponsive_client_are_skipped_together(waiters: int, client: str, backend: str) -> None:
    waited = behind_the_waiters_of_one_client(Plan(backend=backend), waiters, is_dead=client == "dead")

    assert waited is not None
    assert waited < SKIPPED_MAX


@pytest.mark.parametrize("backend", ["mysql-row", "mysql-version"])
def test_dead_waiters_do_not_keep_a_lock_that_is_free(backend: str) -> None:
    waited = behind_the_waiters_of_one_client(Plan(backend=backend), 4, is_dead=True)

    assert waited is not None
    assert waited < 1.0


@pytest.mark.parametrize("mutant", ["unique-wakes-one-dead-waiter", "row-terminates-one-session"])
def test_waiters_that_expire_one_by_one_are_detected(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    waited = behind_the_waiters_of_one_client(plan, 4, is_dead=False)

    assert waited is None or waited > SKIPPED_MAX


def test_readers_of_one_client_behind_a_writer_are_granted_the_lock_together() -> None:
    contenders = Contenders(Plan(backend="mysql"))
    contenders.take("writer", holds=2.0)
    contenders.run(0.5)
    member = contenders.small.add("readers")
    granted: list[float] = []

    async def read() -> None:
        lock = member.client.lock("lock", limit=None, exclusive=False, options={"ttl": TTL})
        assert await member.client.acquire(lock, None) is not None
        granted.append(contenders.small.world.now)

    for _ in range(20):
        member.start(read())
    contenders.run(6.0)
    contenders.small.end()

    assert len(granted) == 20
    assert max(granted) - min(granted) < 0.1


def behind_a_dead_holder(plan: Plan, set_back: float) -> float | None:
    """How long the next client waits if the server's clock is set back when the holder dies; None: no grant."""
    contenders = Contenders(plan)
    contenders.take("a")
    contenders.run(1.0)
    contenders.members["a"].process.crash()
    contenders.small.server.process_died(contenders.members["a"].process)
    contenders.small.server.step_clock(-set_back)
    contenders.take("b")
    contenders.run(31.0)
    contenders.small.end()
    return contenders.granted["b"] - 1.0 if "b" in contenders.granted else None


@pytest.mark.parametrize("set_back", [0.5, 2.0, 45.0, 3600.0])
@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_a_dead_holder_keeps_the_lock_for_little_longer_when_the_clock_is_set_back(
    backend: str, set_back: float
) -> None:
    waited = behind_a_dead_holder(Plan(backend=backend), set_back)

    assert waited is not None
    assert TTL - 1.1 < waited < 2 * TTL + 0.5


@pytest.mark.parametrize(
    "mutant", ["unique-ignores-a-clock-set-back", "row-ignores-a-clock-set-back", "version-ignores-a-clock-set-back"]
)
def test_a_lease_prolonged_by_a_clock_set_back_is_detected(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    assert behind_a_dead_holder(plan, 45.0) is None


def beside_a_reader(plan: Plan) -> bool:
    """Whether a writer is granted the lock beside a reader after an operator has deleted the row of the lock."""
    small = SmallWorld(plan, Choices(decisions=()))
    reader, writer = small.add("reader"), small.add("writer")
    holds: list[SimLease | None] = []

    async def read() -> None:
        lock = reader.client.lock("lock", limit=None, exclusive=False, options={"ttl": TTL})
        holds.append(await reader.client.acquire(lock, None))

    async def write() -> None:
        holds.append(await writer.client.acquire(writer.lock(TTL), 5.0))

    with quiet():
        reader.start(read())
        small.world.run(1.0)
        assert isinstance(small.server, MysqlServer)
        small.server.tables.locks.clear()
        writer.start(write())
        small.world.run(10.0)
        small.end()
    assert holds[0] is not None
    return holds[1] is not None


def test_a_writer_waits_for_the_readers_of_a_lock_whose_row_was_deleted() -> None:
    assert not beside_a_reader(Plan(backend="mysql"))


def test_a_writer_beside_readers_of_a_lock_whose_row_was_deleted_is_detected() -> None:
    assert beside_a_reader(MUTANTS["unique-new-rows-are-free"].apply(Plan()))


def test_a_row_lock_of_a_stopped_holder_stays_when_it_is_not_terminated() -> None:
    plan = MUTANTS["row-holder-not-terminated"].apply(Plan())

    assert behind_a_stopped_holder(plan) is None


def keeps_its_next_lease(plan: Plan) -> bool:
    """Whether a client that was stopped and terminated at one lock keeps the lock that it acquires next."""
    contenders = Contenders(plan)
    contenders.take("a")
    contenders.run(0.5)
    stopped = contenders.members["a"]
    stopped.process.pause()
    contenders.take("b")
    contenders.run(TTL + 0.1)  # b has noticed that the lease has ended and the connection still has the row lock
    holds: list[SimLease | None] = []

    async def take_another() -> None:
        lock = stopped.client.lock("another", options={"ttl": TTL})
        holds.append(await stopped.client.acquire(lock, None))

    stopped.process.resume()
    contenders.run(TTL + 0.5)
    stopped.start(take_another())
    contenders.run(TTL + 10.0)
    is_held = holds[0] is not None and holds[0].held
    contenders.small.end()
    return is_held


def test_a_terminated_connection_is_not_killed_again_when_it_has_another_lock() -> None:
    assert keeps_its_next_lease(Plan(backend="mysql-row"))


def test_a_late_kill_is_detected() -> None:
    assert not keeps_its_next_lease(MUTANTS["row-kills-by-number"].apply(Plan()))


class LosesOneReply(Link):
    """Loses the reply with this number."""

    number = 0
    replies = 0

    def happens(self, kind: str, probability: float) -> bool:
        if kind != "lose_reply":
            return super().happens(kind, probability)
        self.replies += 1
        return self.replies == self.number


class LossyRandom(SmallWorld):
    """The same for all clients."""

    number = 0

    def link(self, process: Process) -> Link:
        link = LosesOneReply(process, self.server, CALM)
        link.number = self.number
        return link


def lost_reply(number: int) -> tuple[str, int]:
    """The result of an acquire with method=row if the reply to one request is lost; and the number of requests."""
    small = LossyRandom(Plan(backend="mysql-row"), Choices(decisions=()))
    small.number = number
    member = small.add("a")
    ends: list[str] = []

    async def take() -> None:
        try:
            lease = await member.client.acquire(member.lock(TTL), None)
        except BackendError as error:
            ends.append(type(error).__name__)
        else:
            ends.append("held" if lease is not None and lease.held else "not held")

    member.start(take())
    with quiet():
        small.world.run(60.0)
    small.end()
    assert isinstance(member.link, LosesOneReply)
    return ends[0], member.link.replies


def test_a_request_of_method_row_is_repeated_when_its_reply_is_lost() -> None:
    _, replies = lost_reply(0)
    ends = {number: lost_reply(number)[0] for number in range(1, replies + 1)}

    # The login and the settings: a failure there means that the server is unavailable.
    connecting = {number for number, end in ends.items() if end == "BackendUnavailable"}
    assert len(connecting) == 2
    assert set(ends.values()) == {"held", "BackendUnavailable"}
    assert replies >= 6, "the gate row, login, settings, the named lock, the row lock, the lease"


# ── registers, owners and several locks, with several clients on a lossy network ─────────────────────────────────────

LOSSY = Faults(lose_request=0.1, lose_reply=0.2, slow=0.1)
SEEDS = range(60)


class LossyWorld(SmallWorld):
    """A world in which requests and replies may be late or lost."""

    faults = LOSSY

    def link(self, process: Process) -> Link:
        return Link(process, self.server, self.faults)

    def live(self, seconds: float) -> None:
        with quiet():
            self.world.run(seconds)
            self.end()


def advance_registers(plan: Plan, seed: int) -> Counter[int]:
    """Three clients advance a register step by step. Returns for each number how many clients were confirmed."""
    small = LossyWorld(plan, Choices(seed=seed))
    winners: Counter[int] = Counter()

    async def advance(member: ClientProcess, client: int) -> None:
        runtime, backend = member.client.runtime, member.client.engine.backend
        for number in range(1, 6):
            nonce = f"{client:016x}{number:016x}"
            for _ in range(20):
                with contextlib.suppress(BackendError):
                    soon = runtime.now() + 1.0
                    is_ours = await backend.advance_register("job", number, nonce=nonce, keep=3600.0, deadline=soon)
                    winners[number] += is_ours
                    break

    for client, name in enumerate("abc"):
        member = small.add(name)
        member.start(advance(member, client))
    small.live(300.0)
    return winners


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_one_client_advances_a_register_when_messages_get_lost(backend: str) -> None:
    winners = [advance_registers(Plan(backend=backend), seed) for seed in SEEDS]

    assert all(count == 1 for numbers in winners for count in numbers.values() if count), winners
    assert sum(sum(numbers.values()) for numbers in winners) > len(SEEDS), "most numbers have a confirmed client"


def test_a_register_advanced_in_two_steps_is_advanced_twice() -> None:
    plan = MUTANTS["unique-register-in-two-steps"].apply(Plan())

    assert any(count > 1 for seed in SEEDS for count in advance_registers(plan, seed).values())


class Grants(NamedTuple):
    """The grants of a lock, one entry each."""

    owners: list[set[str]]  # the owners of all holders at the time of the grant
    fences: list[set[int]]  # their fences
    missed: int  # clients without a grant


def run_owners(plan: Plan, seed: int) -> Grants:
    """Two owners with two clients each, and a client without an owner, all acquire the same lock three times."""
    small = LossyWorld(plan, Choices(seed=seed))
    small.faults = Faults(lose_request=0.05, lose_reply=0.1, slow=0.3, slow_max=3.0)
    holds: dict[str, SimLease] = {}
    owner_of = {"a": "ann", "b": "ann", "c": "bob", "d": "bob", "e": ""}
    grants, done = Grants([], [], 0), []

    async def take(name: str, member: ClientProcess) -> None:
        options: LockOptions = {"ttl": TTL, **({"owner": owner_of[name]} if owner_of[name] else {})}
        lock = member.client.lock("lock", options=options)
        for _ in range(3):
            with contextlib.suppress(BackendError, LockLost):
                lease = await member.client.acquire(lock, 60.0)
                if lease is None:
                    continue
                holds[name] = lease
                held = {holder: hold for holder, hold in holds.items() if hold.held}
                grants.owners.append({owner_of[holder] or holder for holder in held})
                grants.fences.append({hold.fence for hold in held.values()})
                await member.client.runtime.sleep(1.5)
                await member.client.release(lease)
        done.append(name)

    for name in owner_of:
        member = small.add(name)
        member.client.engine.io_timeout = 0.3  # so that a late request arrives after the repeated one was granted
        member.start(take(name, member))
    small.live(400.0)
    return grants._replace(missed=len(owner_of) - len(done))


def test_an_owner_holds_the_lock_only_with_its_own_tickets_when_messages_get_lost() -> None:
    shared, seeds = 0, SEEDS[:25]
    for seed in seeds:
        grants = run_owners(Plan(backend="mysql"), seed)
        assert grants.missed == 0
        assert all(len(owners) == 1 for owners in grants.owners), (seed, grants)
        assert all(len(fences) == 1 for fences in grants.fences), (seed, grants)
        shared += len(grants.owners)

    assert shared > 5 * len(seeds), "most attempts are granted"


def test_an_owner_granted_beside_another_owner_is_detected() -> None:
    plan = MUTANTS["unique-grants-any-owner"].apply(Plan())

    assert any(len(owners) > 1 for seed in SEEDS for owners in run_owners(plan, seed).owners)


@pytest.mark.parametrize("mutant", ["unique-owner-with-two-fences", "unique-repeat-draws-new-fence"])
def test_different_fences_of_one_owner_are_detected(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    assert any(len(fences) > 1 for seed in SEEDS for fences in run_owners(plan, seed).fences)


class Several(NamedTuple):
    """The result of acquiring two or three of four locks at once, many times."""

    taken: int  # times that a client held all its locks
    overlaps: int  # times that another client validly held one of them
    left: int  # tickets on the server after all clients have ended


def several(plan: Plan, seed: int) -> Several:
    small = LossyWorld(plan, Choices(seed=seed))
    draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
    believed: dict[str, dict[str, float]] = {}  # client -> lock -> deadline
    taken = overlaps = 0

    async def take_turns(name: str, member: ClientProcess) -> None:
        nonlocal taken, overlaps
        runtime, backend = member.client.runtime, member.client.engine.backend
        for _ in range(6):
            wanted = sorted(draw.sample("wxyz", k=draw.choice((2, 3))))
            tickets = [Claim(lock, runtime.nonce(), 3600.0, 1, True, "main", "{}") for lock in wanted]  # noqa: FBT003
            outcomes: list[Granted | Waiting] = []
            with contextlib.suppress(BackendError):
                while len(outcomes) < len(tickets) and not any(isinstance(outcome, Waiting) for outcome in outcomes):
                    outcomes += await backend.try_acquire_all(tickets[len(outcomes) :], deadline=runtime.now() + 1.0)
            granted = [outcome for outcome in outcomes if isinstance(outcome, Granted)]
            if len(granted) == len(tickets) and runtime.now() < min(outcome.deadline for outcome in granted) - 0.3:
                until = {
                    lock: member.process.true_time(outcome.deadline)
                    for lock, outcome in zip(wanted, granted, strict=True)
                }
                others = [theirs for client, theirs in believed.items() if client != name]
                overlaps += any(theirs.get(lock, 0.0) > small.world.now for theirs in others for lock in wanted)
                believed[name], taken = until, taken + 1
                await runtime.sleep(0.2)
            believed.pop(name, None)
            answers: Sequence[bool | BackendError] = [BackendUnavailable(backend="sim", problem="not sent")]
            while any(isinstance(answer, BackendError) for answer in answers):
                with contextlib.suppress(BackendError):
                    answers = await backend.release(tickets, deadline=runtime.now() + 1.0)
            await runtime.sleep(draw.random() / 10)

    for name in "abc":
        member = small.add(name)
        member.start(take_turns(name, member))
    with quiet():
        small.world.run(600.0)
        left_over = len(small.server.live())
        small.end()
    return Several(taken, overlaps, left_over)


def test_several_locks_are_exclusive_and_all_released_when_messages_get_lost() -> None:
    results = [several(Plan(backend="mysql"), seed) for seed in SEEDS]

    assert sum(result.taken for result in results) > len(SEEDS)
    assert not any(result.overlaps for result in results), results
    assert not any(result.left for result in results), results


def test_locks_acquired_blindly_have_two_holders() -> None:
    plan = MUTANTS["unique-check-then-insert"].apply(Plan())

    assert any(several(plan, seed).overlaps for seed in SEEDS)
