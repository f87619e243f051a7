"""Hazard: a number is written twice in its time, because a register is created again while old ones are deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from holdfast.backends.zookeeper.port import Answer, Check, Delete, Request, Session, Transaction
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.backends.zookeeper.protocol.registers import Registers
from holdfast.errors import BackendError
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import CALM, Faults
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.zookeeper.ensemble import ROOT, ZookeeperServer
from holdfast_lab.sim.servers.zookeeper.port import SimPort

SEEDS = range(5)
FAULTS_UNTIL, REST = 30.0, 10.0  # seconds
FAULTS = Faults(slow=0.1, slow_max=0.4, lose_request=0.02, lose_reply=0.05, refuse=0.02)
REGISTERS = f"{ROOT}/%marks"


class Written(NamedTuple):
    """A write that happened between two moments."""

    name: str
    number: int
    keep: float
    since: float
    until: float


class FaultyWorld(SmallWorld):
    """Clients that advance a few registers with short times, on a faulty network."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__(plan, Choices(seed))
        self.server.prepare(FAULTS, 6.0)
        self.written: list[Written] = []

    def link(self, process: Process) -> Link:
        return Link(process, self.server, FAULTS)

    def live(self) -> None:
        with quiet():
            for name in ("a", "b", "c", "d", "e", "f"):
                member = self.add(name)
                member.start(self.work(member))
            self.world.run(FAULTS_UNTIL)
            for member in self.members.values():
                member.link.faults = CALM
            self.world.run(FAULTS_UNTIL + REST)
            self.members["a"].start(self.advance_register(self.members["a"], "last", 1, keep=60.0))
            self.world.run(FAULTS_UNTIL + REST + 5.0)
        self.end()

    async def work(self, member: ClientProcess) -> None:
        while self.world.now < FAULTS_UNTIL:
            # Each new register can start a search for old ones, so many are new.
            name = self.choices.pick(["m", f"once@{self.world.now:.1f}"])
            number = 1 + self.choices.below(4)
            await self.advance_register(member, name, number, keep=self.choices.pick([0.05, 0.05, 2.0]))

    async def advance_register(self, member: ClientProcess, name: str, number: int, *, keep: float) -> None:
        backend, runtime = member.client.engine.backend, member.client.runtime
        nonce, since = runtime.nonce(), self.world.now
        while True:
            try:
                is_written = await backend.advance_register(
                    name, number, nonce=nonce, keep=keep, deadline=runtime.now() + 2.0
                )
            except BackendError:
                continue
            if is_written:
                self.written.append(Written(name, number, keep, since, self.world.now))
            return

    def violations(self) -> list[str]:
        problems = []
        for first in self.written:
            for other in self.written:
                is_first = first.until <= other.since
                keep = first.keep if is_first else min(first.keep, other.keep)
                apart_max = max(first.until, other.until) - min(first.since, other.since)
                if first is other or first.name != other.name or apart_max >= keep:
                    continue  # the time of the first number may have passed
                if first.number == other.number:
                    problems.append(f"written twice: {first} and {other}")
                if first.number > other.number and is_first:
                    problems.append(f"went back: {first} and {other}")
        return problems

    def left(self) -> set[str]:
        assert isinstance(self.server, ZookeeperServer)
        return self.server.leader.tree.nodes[REGISTERS].children


class AlwaysReapingRegisters(Registers):
    def _should_reap(self) -> bool:
        return True


class AlwaysReapingBackend(ZookeeperBackend):
    """Searches for old registers at each create."""

    port_type: type[SimPort] = SimPort

    def __init__(self, config: Any, port: Any, runtime: Any) -> None:
        port.__class__ = self.port_type
        super().__init__(config, port, runtime)
        self._registers = AlwaysReapingRegisters(config.url, config.root, port, runtime, self._parents)


class Changed(SimPort):
    """A port that changes transactions."""

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        changed = [self.changed(request) if isinstance(request, Transaction) else request for request in requests]
        return await super().call(session, changed, deadline=deadline)

    def changed(self, transaction: Transaction) -> Transaction:
        raise NotImplementedError


class WritesUnchecked(Changed):
    """Checks only the register's own version."""

    def changed(self, transaction: Transaction) -> Transaction:
        return Transaction(tuple(request for request in transaction.requests if not isinstance(request, Check)))


class ReapsUncounted(Changed):
    def changed(self, transaction: Transaction) -> Transaction:
        return Transaction(tuple(request for request in transaction.requests if request.path != REGISTERS))


class ReapsAnyVersion(Changed):
    """Also deletes a register that was advanced since it was read."""

    def changed(self, transaction: Transaction) -> Transaction:
        requests = transaction.requests
        parts = (request._replace(version=-1) if isinstance(request, Delete) else request for request in requests)
        return Transaction(tuple(parts))


def plan_with(port: type[SimPort]) -> Plan:
    backend = type(port.__name__, (AlwaysReapingBackend,), {"port_type": port})
    return Plan(server=type("Served", (ZookeeperServer,), {"backend": backend}))


def run_world(plan: Plan, seed: int) -> FaultyWorld:
    world = FaultyWorld(plan, seed)
    world.live()
    return world


def test_no_number_is_written_twice_in_its_time_and_old_registers_are_deleted() -> None:
    for seed in SEEDS:
        world = run_world(plan_with(SimPort), seed)

        assert world.violations() == [], seed
        assert world.left() == {"last"}, seed
        assert len(world.written) > 50, seed


# The world in which a mutant is caught at present is tried first.
@pytest.mark.parametrize(("port", "first"), [(WritesUnchecked, 10), (ReapsUncounted, 19), (ReapsAnyVersion, 39)])
def test_a_mutant_is_caught(port: type[SimPort], first: int) -> None:
    assert any(run_world(plan_with(port), seed).violations() for seed in (first, *range(100)))
