"""Hazard: two calls advance a register to the same number, or no call does although one must.

Several processes advance one register to the same numbers at the same time, over links that lose, delay and repeat
messages. Each repeats its request with the same nonce until it is answered; one process may die. Every later read must
return the advanced number.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol import registers
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.backends.sqlite.protocol import queue as sqlite
from holdfast.errors import BackendError
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import ALL, only
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.memcached.server import MemcachedServer
from holdfast_lab.sim.servers.redlock.server import RedlockServer
from holdfast_lab.sim.servers.sqlite import SimTransaction, SqliteServer

BACKENDS = ["memory", "sqlite", "memcached", "redlock"]
MESSAGES = frozenset({"slow", "lose_request", "lose_reply", "duplicate", "refuse"})
PROCESSES, NUMBERS, SEEDS = 4, 6, 20
NAME = "nightly"


class LossyWorld(SmallWorld):
    def link(self, process: Process) -> Link:
        faults = only(ALL, MESSAGES - self.server.impossible_faults() if self.choices.chance(0.8) else frozenset())
        return Link(process, self.server, faults)


class Run:
    """One run, and its results."""

    def __init__(self, backend: str, seed: int, server: type[Server] | None = None) -> None:
        self.world = LossyWorld(Plan(backend=backend, server=server), Choices(seed=seed))
        self.advanced: Counter[int] = Counter()
        self.went_back: list[tuple[int, int]] = []
        self.finished = 0
        members = [self.world.add(f"p{number}") for number in range(PROCESSES)]
        for member in members:
            member.start(self._advance_all(member))
        self.survivors = PROCESSES
        if self.world.choices.chance(0.5):
            self.survivors -= 1
            self.world.world.at(self.world.choices.between(0.0, 1.0), self._crash, members[0])
        self.world.world.run(self.world.world.now + 3000.0)
        self.world.end()

    async def _advance_all(self, member: ClientProcess) -> None:
        process, backend = member.process, member.client.engine.backend
        highest = 0
        for number in range(1, NUMBERS + 1):
            nonce = f"{self.world.choices.below(2**32):032x}"
            answer = register = None
            while answer is None:
                by = process.now() + 2.0
                answer = await self._answer(backend.advance_register(NAME, number, nonce=nonce, keep=9e4, deadline=by))
            self.advanced[number] += answer
            while register is None:
                register = await self._answer(backend.read_registers([NAME], deadline=process.now() + 2.0))
            if register[0] < max(highest, number):
                self.went_back.append((max(highest, number), register[0]))
            highest = max(highest, register[0])
        self.finished += 1

    def _crash(self, member: ClientProcess) -> None:
        member.process.crash()
        self.world.server.process_died(member.process)

    @staticmethod
    async def _answer(call: Any) -> Any:
        try:
            return await call
        except BackendError:
            return None

    def problem(self) -> str:
        """The problem in a few words; empty if there is none."""
        if max(self.advanced.values()) > 1:
            return f"advanced by several: {self.advanced}"
        if self.went_back:
            return f"went back: {self.went_back}"
        if self.finished < self.survivors:
            return f"only {self.finished} of {self.survivors} are done"
        if self.survivors == PROCESSES and not self.advanced[NUMBERS]:
            return "no client advanced the register to the last number"
        return ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_call_advances_the_register_to_each_number(backend: str) -> None:
    # A world of Redlock takes as long as ten of the others.
    for seed in range(SEEDS // 3 if backend == "redlock" else SEEDS):
        assert not Run(backend, seed).problem(), f"seed {seed}"


# ── broken registers ─────────────────────────────────────────────────────────────────────────────────────────────────


class _UncheckedTransaction(SimTransaction):
    def change(self, sql: str, *values: Any) -> int:
        return super().change(sql.partition("WHERE")[0] if sql == sqlite._ADVANCE_REGISTER else sql, *values)


class WritesUnchecked(SqliteServer):
    """Does not check whether the register has the number already."""

    transaction = _UncheckedTransaction


class StoresUnchecked(MemcachedServer):
    """Stores over any version."""

    def respond(self, requests: bytes) -> bytes:
        if requests.startswith(b"ms sim:%mark:") and b" ME " not in requests:
            head, _, rest = requests.partition(b"\r\n")
            requests = b" ".join(word for word in head.split(b" ") if word[:1] != b"C") + b"\r\n" + rest
        return super().respond(requests)


class BreaksPromises(RedlockServer):
    """A node accepts a request after it has promised to accept only another."""

    texts = {  # noqa: RUF012  (as in its base class)
        lua.ADVANCE.name: lua.ADVANCE.text.replace(
            "return {'behind', their_round}", "if state == '' then return {'behind', their_round} end"
        )
    }


class _TakesTheGreatest(RedlockBackend):
    async def _try_ballot(self, keys: Any, wanted: Any, deadline: float) -> Any:
        """Advance the register as on one node: only numbers that a majority has accepted count."""
        promises = await self._run_round(keys, wanted, "", deadline)
        if not isinstance(promises, list):
            return promises
        accepted = [state for state in map(registers.State.parse, promises) if state is not None]
        if sum(state.number >= wanted.number for state in accepted) * 2 > len(promises):
            return max(accepted)
        agreed = await self._run_round(keys, wanted, ":".join(map(str, wanted)), deadline)
        return agreed if not isinstance(agreed, list) else wanted


class NoWriteBack(RedlockServer):
    """Ignores a number that a minority has accepted, although it may have been agreed on."""

    backend = _TakesTheGreatest


@pytest.mark.parametrize(
    ("backend", "server"),
    [
        ("sqlite", WritesUnchecked),
        ("memcached", StoresUnchecked),
        ("redlock", BreaksPromises),
        ("redlock", NoWriteBack),
    ],
)
def test_a_broken_register_is_found(backend: str, server: type[Server]) -> None:
    problems = (Run(backend, seed, server).problem() for seed in range(300))

    assert "advanced by several" in next((problem for problem in problems if problem), "")
