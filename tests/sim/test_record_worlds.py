"""Hazard: two calls replace the same record, an older record returns, or a repeated request is refused.

Several processes replace one record at the same time, over links that lose, delay and repeat messages. Each repeats its
request with the same nonce until it is answered; one process may die. In half of the worlds the record is removed at
times; there no request is delayed or repeated, because it could create the record again after the remove.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend
from holdfast.backends.zookeeper.port import Answer, Request, Session, Set, Transaction
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.ports import Record
from holdfast.errors import BackendError
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import ALL, only
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.etcd.server import EtcdServer
from holdfast_lab.sim.servers.etcd.store import Store
from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer
from holdfast_lab.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast_lab.sim.servers.zookeeper.port import SimPort

BACKENDS = ["memory", "sqlite", "redis", "postgresql", "postgresql-advisory", "mysql", "mysql-row", "mysql-version"]
BACKENDS += ["etcd", "etcd-key", "zookeeper"]
LOST = frozenset({"lose_request", "lose_reply", "refuse"})
LATE = frozenset({"slow", "duplicate"})
PROCESSES, TURNS, SEEDS = 4, 6, 15
NAME = "charge"


class Run:
    """One run, and its results."""

    def __init__(self, backend: str, seed: int, server: type[Server] | None = None) -> None:
        self.removes = seed % 2 == 1
        faults = LOST if self.removes else LOST | LATE
        self.world = _LossyWorld(Plan(backend=backend, server=server), Choices(seed=seed), faults)
        self.replaced: Counter[str] = Counter()  # by the nonce of the record that was replaced or removed
        self.created = self.finished = 0
        members = [self.world.add(f"p{number}") for number in range(PROCESSES)]
        for member in members:
            member.start(self._work(member))
        self.survivors = PROCESSES
        if self.world.choices.chance(0.5):
            self.survivors -= 1
            self.world.world.at(self.world.choices.between(0.0, 1.0), self._crash, members[0])
        self.world.world.run(self.world.world.now + 3000.0)
        self.world.end()

    async def _work(self, member: ClientProcess) -> None:
        for _ in range(TURNS):
            stored = await self._swap(member, "", None)
            expected = "" if stored is None else stored.nonce
            nonce = f"{self.world.choices.below(2**32):032x}"
            is_remove = self.removes and stored is not None and self.world.choices.chance(0.4)
            mine = None if is_remove else Record(nonce, expected)
            answer = await self._swap(member, expected, mine)
            if mine is not None and answer is not None and answer.nonce == nonce:
                self.created += not expected
                self.replaced[expected] += bool(expected)
                assert answer == mine
        self.finished += 1

    async def _swap(self, member: ClientProcess, expected: str, record: Record | None) -> Record | None:
        """Repeat the call until it is answered."""
        backend: Any = member.client.engine.backend
        while True:
            try:
                stored: Record | None = await backend.swap_record(
                    NAME, expected, record, keep=9e4, deadline=member.process.now() + 2.0
                )
            except BackendError:
                if self.removes and record is not None:
                    return None
            else:
                return stored

    def _crash(self, member: ClientProcess) -> None:
        member.process.crash()
        self.world.server.process_died(member.process)

    def problem(self) -> str:
        """The problem in a few words; empty if there is none."""
        if self.replaced and max(self.replaced.values()) > 1:
            return f"replaced twice: {self.replaced}"
        if not self.removes and self.created > 1:
            return f"created {self.created} times"
        if self.finished < self.survivors:
            return f"only {self.finished} of {self.survivors} are done"
        if self.survivors == PROCESSES and not self.created and not self.replaced:
            return "no client has written the record"
        return ""


class _LossyWorld(SmallWorld):
    def __init__(self, plan: Plan, choices: Choices, faults: frozenset[str]) -> None:
        self._faults = faults
        super().__init__(plan, choices)

    def link(self, process: Process) -> Link:
        kinds = self._faults - self.server.impossible_faults() if self.choices.chance(0.8) else frozenset()
        return Link(process, self.server, only(ALL, kinds))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_call_replaces_each_record(backend: str) -> None:
    for seed in range(SEEDS):
        assert not Run(backend, seed).problem(), f"seed {seed}"


# ── broken records ───────────────────────────────────────────────────────────────────────────────────────────────────


class _TwoSteps(PostgresqlBackend):
    """Reads the record, and replaces it in another request."""

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        stored = await super().swap_record(name, "", None, keep=keep, deadline=deadline)
        if (stored.nonce if stored else "") != expected or not (expected or record):
            return stored
        self._port.tables.records.pop(name, None)  # type: ignore[attr-defined]
        return await super().swap_record(name, "", record, keep=keep, deadline=deadline) if record else None


class PostgresqlInTwoSteps(PostgresqlServer):
    def open(self, link: Link, runtime: Any) -> Any:
        backend = super().open(link, runtime)
        backend._port.tables = self.tables  # type: ignore[attr-defined]
        return backend

    backend = _TwoSteps


class _ComparesNothing(Store):
    def _is_true(self, compare: Mapping[str, Any]) -> bool:
        return compare["target"] == "MOD" or super()._is_true(compare)


class EtcdComparesNothing(EtcdServer):
    def __init__(self, world: Any, recorder: Any) -> None:
        super().__init__(world, recorder)
        self.store = _ComparesNothing()


class _AnyVersion(SimPort):
    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        changed = [self.unversioned(request) if isinstance(request, Transaction) else request for request in requests]
        return await super().call(session, changed, deadline=deadline)

    @staticmethod
    def unversioned(transaction: Transaction) -> Transaction:
        return Transaction(tuple(part._replace(version=-1) for part in transaction.requests if isinstance(part, Set)))


class _AnyVersionBackend(ZookeeperBackend):
    def __init__(self, config: Any, port: Any, runtime: Any) -> None:
        port.__class__ = _AnyVersion
        super().__init__(config, port, runtime)


class ZookeeperWritesAnyVersion(ZookeeperServer):
    backend = _AnyVersionBackend


@pytest.mark.parametrize(
    ("backend", "server"),
    [
        ("postgresql", MUTANTS["record-overwritten"].server),
        ("postgresql", PostgresqlInTwoSteps),
        ("mysql", MUTANTS["unique-record-overwritten"].server),
        ("etcd", EtcdComparesNothing),
        ("zookeeper", ZookeeperWritesAnyVersion),
    ],
)
def test_a_broken_compare_and_set_is_found(backend: str, server: type[Server]) -> None:
    assert any(Run(backend, seed, server).problem() for seed in range(100))
