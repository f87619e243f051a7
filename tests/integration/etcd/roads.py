"""A backend by itself, on a road to the server that counts, and can keep requests under way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import holdfast
from holdfast.backends.etcd.config import config_of
from holdfast.backends.etcd.io.cluster import Cluster
from holdfast.backends.etcd.port import Answer
from holdfast.backends.etcd.protocol.methods import backend_on
from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.core.ports import Backend
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse


class SlowRoad(Cluster):
    """A network on which requests can be kept under way."""

    keeps = False  # the next request, of which nothing is heard
    keeps_after = 0  # as many requests as are answered before one is kept; 0: this is not in use
    asks_another = False  # instead, another member is asked, and answers
    loses_writes = False  # what is done under a condition is done, and nobody hears of it
    kept: tuple[str, Mapping[str, Any]] | None = None
    asked: Sequence[str] = ()  # the methods, one after the other

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        self.asked = [*self.asked, method]
        if not self.keeps:
            self.keeps = self.keeps_after == 1
            self.keeps_after = max(0, self.keeps_after - 1)
            answer = await super().call(method, message, deadline=deadline, once=once)
            if self.loses_writes and message.get("compare"):
                raise holdfast.OutcomeUnknown(backend="test", problem="the answer was lost")
            return answer
        self.keeps, self.kept = False, (method, message)
        if not self.asks_another:
            raise holdfast.OutcomeUnknown(backend="test", problem="it is under way")
        return (await super().call(method, message, deadline=deadline, once=once))._replace(repeated=True)

    def deliver(self) -> Answer:
        """What was kept."""
        assert self.kept is not None
        return run_sync(super().call(*self.kept, deadline=soon()))


class Bench:
    """One backend and its road; each verb with five seconds."""

    def __init__(self, url: str) -> None:
        place, runtime = config_of(parse(url)), ThreadRuntime()
        self.road = SlowRoad(place, BlockingPoller(), BackgroundThreads(), runtime)
        self.backend: Backend = backend_on(self.road, place, runtime)

    def try_acquire(self, ticket: Ticket, *, queue: bool = False) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=queue, deadline=soon()))

    def try_acquire_all(self, tickets: Sequence[Ticket]) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=soon()))

    def release(self, tickets: Sequence[Ticket]) -> list[object]:
        return list(run_sync(self.backend.release(tickets, deadline=soon())))

    def locked(self) -> list[str]:
        """Which locks somebody has."""
        return [info.name for info in run_sync(self.backend.locks("", deadline=soon()))]

    def advance_register(self, name: str, number: int, nonce: str = "a" * 32, keep: float = 60.0) -> bool:
        return run_sync(self.backend.advance_register(name, number, nonce=nonce, keep=keep, deadline=soon()))

    def read_registers(self, *names: str) -> list[int]:
        return list(run_sync(self.backend.read_registers(names, deadline=soon())))

    def calls(self) -> list[str]:
        """What was asked since the last time that this was."""
        asked, self.road.asked = list(self.road.asked), ()
        return asked


@contextlib.contextmanager
def bench(url: str) -> Iterator[Bench]:
    """With its first lease granted, as it is after the first lock."""
    made = Bench(url)
    first = ticket("warm")
    made.try_acquire(first)
    made.release([first])
    made.calls()
    yield made
    run_sync(made.backend.close())


def ticket(name: str, *, ttl: float = 30.0, delay: float = 0.0) -> Ticket:
    info = '{"who": {"host": "here", "pid": 7}, "meta": {}}'
    return Ticket(name, ThreadRuntime().nonce(), ttl, 1, exclusive=True, agent="me", info=info, delay=delay)


def soon() -> float:
    return system.now() + 5
