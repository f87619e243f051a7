"""Who stands still keeps the others out for ever; two raise one mark; an owner is in with somebody else."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from holdfast.core.locks import LockOptions
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.errors import BackendError, BackendUnavailable, LockLost
from holdfast.sim.choices import Choices
from holdfast.sim.client import SimLease
from holdfast.sim.faults import CALM, Faults
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.network import Link
from holdfast.sim.process import Process
from holdfast.sim.run import Plan, quiet
from holdfast.sim.scenarios import ClientProcess, SmallWorld
from holdfast.sim.servers.mysql.server import MysqlServer

TTL = 3.0


class Takers:
    """A world in which everybody wants the same lock."""

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
    """How long the next one waits; None: half a minute was not enough."""
    takers = Takers(plan)
    takers.take("a")
    takers.run(1.0)
    takers.members["a"].process.pause()
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
    takers.members["b"].process.pause()
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


# ── waiters of a client that is dead or stopped, a clock that is set back, a row that is deleted ─────────────────────

PASSED_OVER_MAX = 4.0  # seconds, as docs/backends/mysql.md states


def behind_the_waiters_of_one_client(plan: Plan, waiters: int, *, is_dead: bool) -> float | None:
    """How long a free lock is out of reach if all the waiters before the next one are of a client that does not answer.

    None: half a minute was not enough.
    """
    takers = Takers(plan)
    takers.take("a", holds=2.0)
    takers.run(0.5)
    member = takers.small.add("b")

    async def wait() -> None:
        await member.client.acquire(member.lock(TTL), None)

    for _ in range(waiters):
        member.start(wait())
    takers.run(1.0)
    takers.take("c")
    takers.run(1.5)
    if is_dead:
        member.process.crash()
        takers.small.server.process_died(member.process)
    else:
        member.process.pause()
    takers.run(32.0)
    takers.small.end()
    assert set(takers.granted) <= {"a", "c"}
    return takers.granted["c"] - 2.0 if "c" in takers.granted else None


@pytest.mark.parametrize("backend", ["mysql", "mysql-row"])
@pytest.mark.parametrize("waiters", [1, 4, 20])
@pytest.mark.parametrize("client", ["dead", "stopped"])
def test_all_waiters_of_a_client_that_does_not_answer_are_passed_over_together(
    waiters: int, client: str, backend: str
) -> None:
    waited = behind_the_waiters_of_one_client(Plan(backend=backend), waiters, is_dead=client == "dead")

    assert waited is not None
    assert waited < PASSED_OVER_MAX


@pytest.mark.parametrize("backend", ["mysql-row", "mysql-version"])
def test_dead_waiters_do_not_keep_a_lock_that_is_free(backend: str) -> None:
    waited = behind_the_waiters_of_one_client(Plan(backend=backend), 4, is_dead=True)

    assert waited is not None
    assert waited < 1.0


@pytest.mark.parametrize("mutant", ["unique-woken-alone", "row-terminated-alone"])
def test_waiters_that_lapse_one_after_the_other_are_found(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    waited = behind_the_waiters_of_one_client(plan, 4, is_dead=False)

    assert waited is None or waited > PASSED_OVER_MAX


def test_readers_of_one_client_behind_a_writer_are_granted_the_lock_together() -> None:
    takers = Takers(Plan(backend="mysql"))
    takers.take("writer", holds=2.0)
    takers.run(0.5)
    member = takers.small.add("readers")
    granted: list[float] = []

    async def read() -> None:
        lock = member.client.lock("lock", limit=None, exclusive=False, options={"ttl": TTL})
        assert await member.client.acquire(lock, None) is not None
        granted.append(takers.small.world.now)

    for _ in range(20):
        member.start(read())
    takers.run(6.0)
    takers.small.end()

    assert len(granted) == 20
    assert max(granted) - min(granted) < 0.1


def behind_a_dead_holder(plan: Plan, set_back: float) -> float | None:
    """How long the next one waits if the server's clock is set back when the holder dies; None: too long."""
    takers = Takers(plan)
    takers.take("a")
    takers.run(1.0)
    takers.members["a"].process.crash()
    takers.small.server.process_died(takers.members["a"].process)
    takers.small.server.step_clock(-set_back)
    takers.take("b")
    takers.run(31.0)
    takers.small.end()
    return takers.granted["b"] - 1.0 if "b" in takers.granted else None


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
def test_a_lease_that_ends_late_because_the_clock_was_set_back_is_found(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    assert behind_a_dead_holder(plan, 45.0) is None


def beside_a_reader(plan: Plan) -> bool:
    """Whether a writer is granted the lock beside a reader after an operator has deleted the lock's row."""
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


def test_a_writer_beside_the_readers_of_a_lock_whose_row_was_deleted_is_found() -> None:
    assert beside_a_reader(MUTANTS["unique-deleted-with-its-tickets"].apply(Plan()))


def test_a_gate_that_nobody_is_expelled_from_stays_shut() -> None:
    plan = MUTANTS["row-holder-not-terminated"].apply(Plan())

    assert behind_a_stopped_holder(plan) is None


def keeps_its_next_lease(plan: Plan) -> bool:
    """Whether a client that was stopped, and expelled from the row of one lock, keeps the lock that it takes then."""
    takers = Takers(plan)
    takers.take("a")
    takers.run(0.5)
    stopped = takers.members["a"]
    stopped.process.pause()
    takers.take("b")
    takers.run(TTL + 0.1)  # b has found out that the lease has ended, and that its connection still has the row
    holds: list[SimLease | None] = []

    async def take_another() -> None:
        lock = stopped.client.lock("another", options={"ttl": TTL})
        holds.append(await stopped.client.acquire(lock, None))

    stopped.process.resume()
    takers.run(TTL + 0.5)
    stopped.start(take_another())
    takers.run(TTL + 10.0)
    is_held = holds[0] is not None and holds[0].held
    takers.small.end()
    return is_held


def test_a_connection_that_was_expelled_from_one_lock_is_not_killed_when_it_has_another() -> None:
    assert keeps_its_next_lease(Plan(backend="mysql-row"))


def test_a_kill_that_comes_late_is_found() -> None:
    assert not keeps_its_next_lease(MUTANTS["row-kills-by-number"].apply(Plan()))


class LosesOne(Link):
    """Of all replies, the one with this number gets lost."""

    number = 0
    replies = 0

    def happens(self, kind: str, probability: float) -> bool:
        if kind != "lose_reply":
            return super().happens(kind, probability)
        self.replies += 1
        return self.replies == self.number


class OneIsLost(SmallWorld):
    """For whoever there is."""

    number = 0

    def link(self, process: Process) -> Link:
        link = LosesOne(process, self.server, CALM)
        link.number = self.number
        return link


def lost_reply(number: int) -> tuple[str, int]:
    """What an acquire on method=row comes to if the reply to one of its requests gets lost; and how many there were."""
    small = OneIsLost(Plan(backend="mysql-row"), Choices(decisions=()))
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
    assert isinstance(member.link, LosesOne)
    return ends[0], member.link.replies


def test_a_lost_reply_is_asked_for_again_on_the_way_to_a_gate_too() -> None:
    _, replies = lost_reply(0)
    found = {number: lost_reply(number)[0] for number in range(1, replies + 1)}

    # To connect, and to say how the connection is to be: until then the server was not there.
    connecting = {number for number, end in found.items() if end == "BackendUnavailable"}
    assert len(connecting) == 2
    assert set(found.values()) == {"held", "BackendUnavailable"}
    assert replies >= 6, "a look at the gate, two to connect, a name, the gate, the lease"


# ── what has no workload of its own yet: several clients, a network that loses things, and one question ──────────────

LOSSY = Faults(lose_request=0.1, lose_reply=0.2, slow=0.1)
SEEDS = range(60)


class LossyWorld(SmallWorld):
    """Whose requests and replies may be late or lost."""

    faults = LOSSY

    def link(self, process: Process) -> Link:
        return Link(process, self.server, self.faults)

    def live(self, seconds: float) -> None:
        with quiet():
            self.world.run(seconds)
            self.end()


def marked(plan: Plan, seed: int) -> Counter[int]:
    """Three raise a mark step by step: how many of them were told, for each number, that it was they who did."""
    small = LossyWorld(plan, Choices(seed=seed))
    told: Counter[int] = Counter()

    async def raise_it(member: ClientProcess, client: int) -> None:
        runtime, backend = member.client.runtime, member.client.engine.backend
        for number in range(1, 6):
            nonce = f"{client:016x}{number:016x}"
            for _ in range(20):
                with contextlib.suppress(BackendError):
                    soon = runtime.now() + 1.0
                    is_ours = await backend.advance_register("job", number, nonce=nonce, keep=3600.0, deadline=soon)
                    told[number] += is_ours
                    break

    for client, name in enumerate("abc"):
        member = small.add(name)
        member.start(raise_it(member, client))
    small.live(300.0)
    return told


@pytest.mark.parametrize("backend", ["mysql", "mysql-row", "mysql-version"])
def test_a_mark_is_raised_to_a_number_by_one_client_whatever_gets_lost(backend: str) -> None:
    told = [marked(Plan(backend=backend), seed) for seed in SEEDS]

    assert all(count == 1 for numbers in told for count in numbers.values() if count), told
    assert sum(sum(numbers.values()) for numbers in told) > len(SEEDS), "somebody was told so, as a rule"


def test_a_mark_that_is_raised_in_two_steps_is_raised_twice() -> None:
    plan = MUTANTS["unique-register-in-two-steps"].apply(Plan())

    assert any(count > 1 for seed in SEEDS for count in marked(plan, seed).values())


class Inside(NamedTuple):
    """Who was in a lock, one entry for each time that somebody got in."""

    owners: list[set[str]]  # all that were in then
    fences: list[set[int]]
    missed: int  # clients that never got in


def together(plan: Plan, seed: int) -> Inside:
    """Two owners with two clients each, and one without a name, all take the same lock three times."""
    small = LossyWorld(plan, Choices(seed=seed))
    small.faults = Faults(lose_request=0.05, lose_reply=0.1, slow=0.3, slow_max=3.0)
    holds: dict[str, SimLease] = {}
    caller_of = {"a": "ann", "b": "ann", "c": "bob", "d": "bob", "e": ""}
    inside, done = Inside([], [], 0), []

    async def take(name: str, member: ClientProcess) -> None:
        options: LockOptions = {"ttl": TTL, **({"owner": caller_of[name]} if caller_of[name] else {})}
        lock = member.client.lock("lock", options=options)
        for _ in range(3):
            with contextlib.suppress(BackendError, LockLost):
                lease = await member.client.acquire(lock, 60.0)
                if lease is None:
                    continue
                holds[name] = lease
                held = {who: one for who, one in holds.items() if one.held}
                inside.owners.append({caller_of[who] or who for who in held})
                inside.fences.append({one.fence for one in held.values()})
                await member.client.runtime.sleep(1.5)
                await member.client.release(lease)
        done.append(name)

    for name in caller_of:
        member = small.add(name)
        member.client.engine.io_timeout = 0.3  # so that what is late comes while the one that was sent again is in
        member.start(take(name, member))
    small.live(400.0)
    return inside._replace(missed=len(caller_of) - len(done))


def test_an_owner_is_in_with_its_own_and_with_nobody_else_whatever_gets_lost() -> None:
    shared = 0
    for seed in SEEDS:
        inside = together(Plan(backend="mysql"), seed)
        assert inside.missed == 0
        assert all(len(owners) == 1 for owners in inside.owners), (seed, inside)
        assert all(len(fences) == 1 for fences in inside.fences), (seed, inside)
        shared += len(inside.owners)

    assert shared > 5 * len(SEEDS), "most of them got in"


def test_an_owner_that_passes_the_lease_of_another_is_found() -> None:
    plan = MUTANTS["unique-any-owner-joins"].apply(Plan())

    assert any(len(owners) > 1 for seed in SEEDS for owners in together(plan, seed).owners)


@pytest.mark.parametrize("mutant", ["unique-owner-with-two-fences", "unique-owner-draws-again"])
def test_a_fence_that_those_of_one_owner_do_not_share_is_found(mutant: str) -> None:
    plan = MUTANTS[mutant].apply(Plan())

    assert any(len(fences) > 1 for seed in SEEDS for fences in together(plan, seed).fences)


class Several(NamedTuple):
    """What came of taking two or three of four locks at once, many times."""

    taken: int  # times that somebody had all that it wanted
    overlaps: int  # times that another had one of them, and had reason to believe it
    left: int  # tickets on the server once everybody has gone


def several(plan: Plan, seed: int) -> Several:
    small = LossyWorld(plan, Choices(seed=seed))
    draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
    believed: dict[str, dict[str, float]] = {}  # client -> lock -> until when
    taken = overlaps = 0

    async def take_turns(name: str, member: ClientProcess) -> None:
        nonlocal taken, overlaps
        runtime, backend = member.client.runtime, member.client.engine.backend
        for _ in range(6):
            wanted = sorted(draw.sample("wxyz", k=draw.choice((2, 3))))
            tickets = [Ticket(lock, runtime.nonce(), 3600.0, 1, True, "main", "{}") for lock in wanted]  # noqa: FBT003
            outcomes: list[Granted | Waiting] = []
            with contextlib.suppress(BackendError):
                while len(outcomes) < len(tickets) and not any(isinstance(one, Waiting) for one in outcomes):
                    outcomes += await backend.try_acquire_all(tickets[len(outcomes) :], deadline=runtime.now() + 1.0)
            granted = [one for one in outcomes if isinstance(one, Granted)]
            if len(granted) == len(tickets) and runtime.now() < min(one.deadline for one in granted) - 0.3:
                until = {
                    lock: member.process.true_time(one.deadline) for lock, one in zip(wanted, granted, strict=True)
                }
                others = [theirs for who, theirs in believed.items() if who != name]
                overlaps += any(theirs.get(lock, 0.0) > small.world.now for theirs in others for lock in wanted)
                believed[name], taken = until, taken + 1
                await runtime.sleep(0.2)
            believed.pop(name, None)
            left: Sequence[bool | BackendError] = [BackendUnavailable(backend="sim", problem="not asked")]
            while any(isinstance(answer, BackendError) for answer in left):
                with contextlib.suppress(BackendError):
                    left = await backend.release(tickets, deadline=runtime.now() + 1.0)
            await runtime.sleep(draw.random() / 10)

    for name in "abc":
        member = small.add(name)
        member.start(take_turns(name, member))
    with quiet():
        small.world.run(600.0)
        still_there = len(small.server.live())
        small.end()
    return Several(taken, overlaps, still_there)


def test_several_locks_are_had_by_one_at_a_time_and_all_given_back_whatever_gets_lost() -> None:
    found = [several(Plan(backend="mysql"), seed) for seed in SEEDS]

    assert sum(one.taken for one in found) > len(SEEDS)
    assert not any(one.overlaps for one in found), found
    assert not any(one.left for one in found), found


def test_locks_that_are_taken_blindly_are_had_by_two() -> None:
    plan = MUTANTS["unique-check-then-insert"].apply(Plan())

    assert any(several(plan, seed).overlaps for seed in SEEDS)
