"""Two owners hold a lock at the same time, or an owner and a ticket without one, when requests are lost and processes
die.

Random worlds with the real engine and the real scripts. At every moment the lock has one holder, or all
its holders have the same owner. A later lease has a greater fence, unless it has the same owner. In the end the lock is
free. Mutants show that the test detects violations.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast.errors import HoldfastError
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.faults import CALM, Faults
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.redis.server import RedisServer

CLIENTS, ROUNDS = "abcde", 6
OWNERS = ("one", "one", "two", "")
TTL = 3.0
TROUBLED_FOR, HEALED_FOR, REST = 30.0, 60.0, 25.0
KINDS = frozenset({"slow", "lose_request", "lose_reply", "refuse", "lose_notification", "pause", "crash", "restart"})


class Believed(NamedTuple):
    member: ClientProcess
    owner: str
    lease: SimLease


class OwnersWorld(SmallWorld):
    """Five clients, one lock, and the leases that they believe to hold."""

    def __init__(self, server: type[RedisServer], seed: int) -> None:
        choices = Choices(seed)
        self._faults = faults_.draw(faults_.only(faults_.ALL, KINDS), choices)
        super().__init__(Plan(backend="redis", server=server), choices)
        self._believed: list[Believed] = []
        self._owners: dict[int, str] = {}  # by fence
        self._done: set[str] = set()
        self.shared = 0  # times that tickets of one owner held the lock together

    def link(self, process: Process) -> Link:
        return Link(process, self.server, self._faults)

    def live(self) -> None:
        for name in CLIENTS:
            self._begin(name, ROUNDS)
        while self.world.now < TROUBLED_FOR:
            self.world.run(self.world.now + 1.0)
            self._trouble(self._faults)
        for member in self.members.values():
            member.link.faults = CALM
            member.process.resume()
        self.world.run(self.world.now + HEALED_FOR)
        assert self._done == set(CLIENTS), "a client still waits"
        self.world.run(self.world.now + REST)
        assert not self.server.live(), "a ticket still holds the lock"

    def _begin(self, name: str, rounds: int) -> None:
        member = self.add(name)
        member.start(self._work(member, rounds))

    def _trouble(self, faults: Faults) -> None:
        for name, member in list(self.members.items()):
            if self.choices.chance(faults.pause):
                member.process.pause()
                self.world.at(self.world.now + self.choices.between(0.0, 2 * TTL), member.process.resume)
            if self.choices.chance(faults.crash):
                member.process.crash()
                member.client.engine.abandon("its process has crashed")
                self._begin(name, 2)
        if self.choices.chance(faults.restart):
            assert isinstance(self.server, RedisServer)
            self.server.restart()

    async def _work(self, member: ClientProcess, rounds: int) -> None:
        pause = member.client.runtime.sleep
        for _ in range(rounds):
            owner = self.choices.pick(OWNERS)
            lock = member.client.lock("lock", options={"ttl": TTL, "owner": owner} if owner else {"ttl": TTL})
            await pause(self.choices.between(0.0, 1.0))
            try:
                lease = await member.client.acquire(lock, self.choices.pick((None, 0.0, 5.0)))
                if lease is None:
                    continue
                mine = Believed(member, owner, lease)
                self._record_grant(mine)
                for _ in range(1 + self.choices.below(3)):
                    await pause(self.choices.between(0.0, 1.5))
                    self._check_holders()
                self._believed.remove(mine)
                await member.client.release(lease)
            except HoldfastError:
                continue
        self._done.add(member.process.name)

    def _record_grant(self, mine: Believed) -> None:
        newest = max(self._owners, default=0)
        fence = mine.lease.fence
        assert fence >= newest, "a fence has gone back"
        assert fence > newest or mine.owner == self._owners[fence] != "", "two leases have one fence"
        self._owners[fence] = mine.owner
        self._believed.append(mine)
        self._check_holders()

    def _check_holders(self) -> None:
        holders = [belief for belief in self._believed if not belief.member.process.is_dead and belief.lease.held]
        if len(holders) > 1:
            self.shared += 1
            assert len({holder.owner for holder in holders}) == 1, "two owners are in"
            assert holders[0].owner, "two without a name are in"
            assert len({holder.lease.fence for holder in holders}) == 1, "tickets of one owner have two fences"


def run_world(server: type[RedisServer], seed: int) -> OwnersWorld:
    with quiet():
        world = OwnersWorld(server, seed)
        try:
            world.live()
        finally:
            world.end()
    return world


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.extra)])
def test_several_holders_of_a_lock_always_have_the_same_owner(part: int) -> None:
    worlds = [run_world(RedisServer, seed) for seed in range(part * 25, part * 25 + 25)]

    assert sum(world.shared > 0 for world in worlds) > 20, "tickets of one owner share the lock in nearly every world"


@pytest.mark.parametrize(
    "name", [name for name, mutant in MUTANTS.items() if mutant.backend == "redis" and mutant.workload == "owner"]
)
def test_a_mutant_is_detected(name: str) -> None:
    wrong = MUTANTS[name].server
    assert wrong is not None
    assert issubclass(wrong, RedisServer)

    with pytest.raises(AssertionError, match=r"two owners are in|without a name|two fences|gone back|one fence"):
        for seed in (24, *range(200)):  # world 24 detects the rarest at present
            run_world(wrong, seed)
