"""Two clients are granted the same period, or a register decreases, when messages are lost, late or sent again."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.core.ports import Backend
from holdfast.errors import BackendError
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer

CLIENTS = "abcd"
PERIOD, PERIODS = 1.0, 20
# The mutants that the usual worlds do not catch; test_redis_owners.py has those of owners.
MUTANT_NAMES = [
    name
    for name, mutant in MUTANTS.items()
    if not mutant.by_seeds and mutant.backend.startswith("redis") and mutant.workload != "owner"
]
KINDS = frozenset({"slow", "lose_request", "lose_reply", "refuse", "restart"})


class RegisterWorld(SmallWorld):
    """Four clients that advance one register at the same time, once in each period."""

    def __init__(self, server: type[RedisServer], seed: int) -> None:
        choices = Choices(seed)
        self._faults = faults_.draw(faults_.only(faults_.ALL, KINDS), choices, enable=0.6)
        super().__init__(Plan(backend="redis", server=server), choices)
        self.winners: Counter[int] = Counter()  # of each period
        self._highest = 0

    def link(self, process: Process) -> Link:
        return Link(process, self.server, self._faults)

    def live(self) -> None:
        for name in CLIENTS:
            member = self.add(name)
            member.start(self._work(member))
        for _ in range(PERIODS + 20):
            self.world.run(self.world.now + PERIOD)
            if self.choices.chance(self._faults.restart):
                assert isinstance(self.server, RedisServer)
                self.server.restart()

    async def _work(self, member: ClientProcess) -> None:
        backend, runtime = member.client.engine.backend, member.client.runtime
        for number in range(1, PERIODS + 1):
            begins = max(0.0, number * PERIOD - self.world.now)
            await runtime.sleep(begins + self.choices.between(0.0, 0.02))  # all of them at about the same time
            nonce = f"{member.process.name}-{number}"
            for _ in range(3):
                try:
                    deadline = member.process.now() + 1.0
                    is_mine = await backend.advance_register("daily", number, nonce=nonce, keep=1e6, deadline=deadline)
                except BackendError:
                    continue  # the same request again
                self.winners[number] += is_mine
                break
            await self._read_register(backend, member)

    async def _read_register(self, backend: Backend, member: ClientProcess) -> None:
        before = self._highest
        try:
            (number,) = await backend.read_registers(["daily"], deadline=member.process.now() + 1.0)
        except BackendError:
            return
        assert number >= before, "a register has decreased"
        self._highest = max(self._highest, number)


def run_world(server: type[RedisServer], seed: int) -> RegisterWorld:
    with quiet():
        world = RegisterWorld(server, seed)
        try:
            world.live()
        finally:
            world.end()
    assert world.winners, "no client ever succeeded"
    assert max(world.winners.values()) == 1, "two clients succeeded"
    return world


@pytest.mark.parametrize("server", [RedisServer, SetnxServer, GetsetServer])
def test_at_most_one_client_advances_a_register_to_a_number(server: type[RedisServer]) -> None:
    worlds = [run_world(server, seed) for seed in range(25)]

    assert sum(sum(world.winners.values()) for world in worlds) > 25 * PERIODS / 4, "in many periods a client succeeds"


@pytest.mark.parametrize("name", MUTANT_NAMES)
def test_a_mutant_is_detected(name: str) -> None:
    wrong = MUTANTS[name].server
    assert wrong is not None
    assert issubclass(wrong, RedisServer)

    with pytest.raises(AssertionError, match=r"two clients succeeded|has decreased"):
        for seed in range(300):
            run_world(wrong, seed)
