"""Hazard: two calls that both have raised a mark to one number, or none although somebody must have.

Some processes raise one mark to the same numbers at the same time, over links that lose, delay and repeat what is sent.
Each asks again, under the same nonce, until it is answered; one may die in the middle. A mark that was raised must be
found by everybody later.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol import registers as quorum_marks
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.backends.sqlite.protocol import queue as sqlite
from holdfast.errors import BackendError
from holdfast.sim.choices import Choices
from holdfast.sim.faults import ALL, only
from holdfast.sim.network import Link
from holdfast.sim.process import Process
from holdfast.sim.run import Plan
from holdfast.sim.scenarios import ClientProcess, SmallWorld
from holdfast.sim.servers.base import Server
from holdfast.sim.servers.memcached.server import MemcachedServer
from holdfast.sim.servers.redlock.server import RedlockServer
from holdfast.sim.servers.sqlite import SimTransaction, SqliteServer

BACKENDS = ["memory", "sqlite", "memcached", "redlock"]
MESSAGES = frozenset({"slow", "lose_request", "lose_reply", "duplicate", "refuse"})
PROCESSES, NUMBERS, SEEDS = 4, 6, 40
NAME = "nightly"


class MarksWorld(SmallWorld):
    def link(self, process: Process) -> Link:
        faults = only(ALL, MESSAGES - self.server.impossible_faults() if self.choices.chance(0.8) else frozenset())
        return Link(process, self.server, faults)


class Marking:
    """What came of it."""

    def __init__(self, backend: str, seed: int, server: type[Server] | None = None) -> None:
        self.world = MarksWorld(Plan(backend=backend, server=server), Choices(seed=seed))
        self.raised: Counter[int] = Counter()
        self.went_back: list[tuple[int, int]] = []
        self.finished = 0
        members = [self.world.add(f"p{number}") for number in range(PROCESSES)]
        for member in members:
            member.start(self._raise_all(member))
        self.survivors = PROCESSES
        if self.world.choices.chance(0.5):
            self.survivors -= 1
            self.world.world.at(self.world.choices.between(0.0, 1.0), self._kill, members[0])
        self.world.world.run(self.world.world.now + 3000.0)
        self.world.end()

    async def _raise_all(self, member: ClientProcess) -> None:
        process, backend = member.process, member.client.engine.backend
        seen = 0
        for number in range(1, NUMBERS + 1):
            nonce = f"{self.world.choices.below(2**32):032x}"
            answer = found = None
            while answer is None:
                by = process.now() + 2.0
                answer = await self._answer(backend.advance_register(NAME, number, nonce=nonce, keep=9e4, deadline=by))
            self.raised[number] += answer
            while found is None:
                found = await self._answer(backend.read_registers([NAME], deadline=process.now() + 2.0))
            if found[0] < max(seen, number):
                self.went_back.append((max(seen, number), found[0]))
            seen = max(seen, found[0])
        self.finished += 1

    def _kill(self, member: ClientProcess) -> None:
        member.process.crash()
        self.world.server.process_died(member.process)

    @staticmethod
    async def _answer(call: Any) -> Any:
        try:
            return await call
        except BackendError:
            return None

    def wrong(self) -> str:
        """In a few words; empty if nothing is."""
        if max(self.raised.values()) > 1:
            return f"raised by several: {self.raised}"
        if self.went_back:
            return f"went back: {self.went_back}"
        if self.finished < self.survivors:
            return f"only {self.finished} of {self.survivors} are done"
        if self.survivors == PROCESSES and not self.raised[NUMBERS]:
            return "the last number was raised by nobody"
        return ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_is_raised_by_one(backend: str) -> None:
    for seed in range(SEEDS):
        assert not Marking(backend, seed).wrong(), f"seed {seed}"


# ── it would be seen ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Blindly(SimTransaction):
    def change(self, sql: str, *values: Any) -> int:
        return super().change(sql.partition("WHERE")[0] if sql == sqlite._ADVANCE_REGISTER else sql, *values)


class WritesBlindly(SqliteServer):
    """It does not look whether the mark is there already."""

    transaction = _Blindly


class StoresBlindly(MemcachedServer):
    """It stores over whatever version is there."""

    def respond(self, requests: bytes) -> bytes:
        if requests.startswith(b"ms sim:%mark:") and b" ME " not in requests:
            head, _, rest = requests.partition(b"\r\n")
            requests = b" ".join(word for word in head.split(b" ") if word[:1] != b"C") + b"\r\n" + rest
        return super().respond(requests)


class BreaksPromises(RedlockServer):
    """A node accepts what comes after it has promised itself to another."""

    texts = {  # noqa: RUF012  (as the class it is of has it)
        lua.ADVANCE.name: lua.ADVANCE.text.replace(
            "return {'behind', their_round}", "if state == '' then return {'behind', their_round} end"
        )
    }


class _TakesTheGreatest(quorum_marks.QuorumRegisters):
    async def _try(self, keys: Any, wanted: Any, deadline: float) -> Any:
        """As with one node: whoever finds a majority of lower ones has raised it."""
        promises = await self._run_round(keys, wanted, "", deadline)
        if not isinstance(promises, list):
            return promises
        accepted = [state for state in map(quorum_marks.State.parse, promises) if state is not None]
        if sum(state.number >= wanted.number for state in accepted) * 2 > len(promises):
            return max(accepted)
        agreed = await self._run_round(keys, wanted, ":".join(map(str, wanted)), deadline)
        return agreed if not isinstance(agreed, list) else wanted


class _NoWriteBack(RedlockBackend):
    def __init__(self, config: Any, port: Any, runtime: Any) -> None:
        super().__init__(config, port, runtime)
        self._registers = _TakesTheGreatest(config, port, self._health, runtime)


class NoWriteBack(RedlockServer):
    """What a minority has accepted is overlooked, though it may be agreed on."""

    backend = _NoWriteBack


@pytest.mark.parametrize(
    ("backend", "server"),
    [
        ("sqlite", WritesBlindly),
        ("memcached", StoresBlindly),
        ("redlock", BreaksPromises),
        ("redlock", NoWriteBack),
    ],
)
def test_what_breaks_a_mark_is_seen(backend: str, server: type[Server]) -> None:
    found = (Marking(backend, seed, server).wrong() for seed in range(300))

    assert "raised by several" in next((wrong for wrong in found if wrong), "")
