"""Two are told that a period is theirs, or a mark goes down, when requests and answers are lost, late or sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.backends.redis.getset import GetsetBackend
from holdfast.backends.redis.keys import mark_of
from holdfast.backends.redis.protocol import QueueBackend
from holdfast.core.ports import Backend
from holdfast.errors import BackendError
from holdfast.sim import faults as faults_
from holdfast.sim.choices import Choices
from holdfast.sim.network import Link
from holdfast.sim.process import Process
from holdfast.sim.run import Plan, quiet
from holdfast.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer
from holdfast.sim.small import Party, SmallWorld

CLIENTS = "abcd"
PERIOD, PERIODS = 1.0, 20
KINDS = frozenset({"slow", "lose_request", "lose_reply", "refuse", "restart"})


class MarksWorld(SmallWorld):
    """Four clients, each of which wants to be the one in every period."""

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
            party = self.add(name)
            party.start(self._work(party))
        for _ in range(PERIODS + 20):
            self.world.run(self.world.now + PERIOD)
            if self.choices.chance(self._faults.restart):
                assert isinstance(self.server, RedisServer)
                self.server.restart()

    async def _work(self, party: Party) -> None:
        backend, runtime = party.client.engine.backend, party.client.runtime
        for number in range(1, PERIODS + 1):
            begins = max(0.0, number * PERIOD - self.world.now)
            await runtime.sleep(begins + self.choices.between(0.0, 0.02))  # all of them at about the same time
            nonce = f"{party.process.name}-{number}"
            for _ in range(3):
                try:
                    deadline = party.process.now() + 1.0
                    is_mine = await backend.mark("daily", number, nonce=nonce, keep=1e6, deadline=deadline)
                except BackendError:
                    continue  # the same question once more
                self.winners[number] += is_mine
                break
            await self._look(backend, party)

    async def _look(self, backend: Backend, party: Party) -> None:
        before = self._highest
        try:
            (mark,) = await backend.marks(["daily"], deadline=party.process.now() + 1.0)
        except BackendError:
            return
        assert mark >= before, "a mark has gone down"
        self._highest = max(self._highest, mark)


def lived(server: type[RedisServer], seed: int) -> MarksWorld:
    with quiet():
        world = MarksWorld(server, seed)
        try:
            world.live()
        finally:
            world.end()
    assert world.winners, "nobody was ever told"
    assert max(world.winners.values()) == 1, "two were told"
    return world


@pytest.mark.parametrize("server", [RedisServer, SetnxServer, GetsetServer])
def test_one_at_most_is_told_that_it_has_raised_a_mark(server: type[RedisServer]) -> None:
    worlds = [lived(server, seed) for seed in range(60)]

    assert sum(sum(world.winners.values()) for world in worlds) > 60 * PERIODS / 4, "mostly somebody is"


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ReadThenWritten(QueueBackend):
    """In two steps, so two may read before one of them writes."""

    async def mark(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key = mark_of(self._prefix, name)
        last = await self._port.command(key, "HMGET", key.lock, "number", "nonce", deadline=deadline)
        if int(last[0] or 0) >= number:
            return bool(last == [b"%d" % number, nonce.encode()])
        fields = ("number", number, "nonce", nonce)
        await self._port.command(key, "HSET", key.lock, *fields, deadline=deadline)
        return True


class AnyRefusalIsOurs(GetsetBackend):
    """What is there after a refusal is taken for one's own, if only the number fits."""

    async def _add(self, keys: Any, mine: tuple[int, str], deadline: float) -> tuple[int, str]:
        number, _ = await super()._add(keys, mine, deadline)
        return mine if number == mine[0] else (number, "")


@pytest.mark.parametrize(
    ("base", "backend"), [(RedisServer, ReadThenWritten), (GetsetServer, AnyRefusalIsOurs)], ids=["queue", "getset"]
)
def test_a_mistake_is_seen(base: type[RedisServer], backend: Callable[..., Any]) -> None:
    wrong = type("Wrong", (base,), {"backend": backend})

    with pytest.raises(AssertionError, match=r"two were told|gone down"):
        for seed in range(300):
            lived(wrong, seed)
