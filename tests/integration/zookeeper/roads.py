"""A backend by itself, on a road to the server that counts, and can lose what comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import holdfast
from holdfast.backends.zookeeper.config import config_of
from holdfast.backends.zookeeper.io.blocking import BlockingEnsemble
from holdfast.backends.zookeeper.port import Answer, Children, Get, Node, Request, Session
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse


class Road(BlockingEnsemble):
    """Counts what is asked below the node, and so not the pulse's own."""

    trips: Sequence[Sequence[Request]] = ()
    loses_writes = False  # they are done, and nobody hears of it
    before_writes: Callable[[], object] | None = None  # what happens, once, before the next of them gets there

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        is_own = "%sessions" in repr(requests)
        is_write = not is_own and not all(isinstance(request, Children | Get) for request in requests)
        before, self.before_writes = (self.before_writes, None) if is_write else (None, self.before_writes)
        if before is not None:
            before()
        answers = await super().call(session, requests, deadline=deadline)
        if not is_own:
            self.trips = [*self.trips, requests]
            if self.loses_writes and is_write:
                raise holdfast.OutcomeUnknown(backend="test", problem="the answer was lost")
        return answers


class Dice(ThreadRuntime):
    """Chance, unless a test throws."""

    thrown: float | None = None

    def jitter(self) -> float:
        return ThreadRuntime.jitter() if self.thrown is None else self.thrown


class Bench:
    """One backend and its road; each verb with ten seconds."""

    def __init__(self, url: str) -> None:
        config, self.dice = config_of(parse(url)), Dice()
        self.root = config.root
        self.road = Road(config, self.dice)
        self.backend = ZookeeperBackend(config, self.road, self.dice)

    def try_acquire(self, ticket: Ticket) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=False, deadline=soon()))

    def try_acquire_all(self, tickets: Sequence[Ticket]) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=soon()))

    def release(self, tickets: Sequence[Ticket]) -> list[object]:
        return list(run_sync(self.backend.release(tickets, deadline=soon())))

    def locked(self) -> list[str]:
        """Which locks somebody has."""
        return [info.name for info in run_sync(self.backend.locks("", deadline=soon()))]

    def advance_register(self, name: str, number: int, nonce: str = "a" * 32, *, keep: float = 60.0) -> bool:
        return run_sync(self.backend.advance_register(name, number, nonce=nonce, keep=keep, deadline=soon()))

    def read_registers(self, *names: str) -> list[int]:
        return run_sync(self.backend.read_registers(names, deadline=soon()))

    def marked_at(self, name: str) -> float:
        """When it was raised, by the server's clock."""
        (session,) = self.road.sessions
        (node,) = run_sync(self.road.call(session, (Get(f"{self.root}/%marks/{name}"),), deadline=soon()))
        assert isinstance(node, Node)
        return node.mtime

    def close(self) -> None:
        run_sync(self.backend.close())

    def round_trips(self) -> int:
        """Since the last time that this was asked."""
        trips, self.road.trips = self.road.trips, ()
        return len(trips)


@contextlib.contextmanager
def bench(url: str) -> Iterator[Bench]:
    made = Bench(url)
    yield made
    made.close()


def ticket(name: str, *, ttl: float = 20.0, delay: float = 0.0) -> Ticket:
    info = '{"who": {"host": "here", "pid": 7}, "meta": {}}'
    return Ticket(name, ThreadRuntime().nonce(), ttl, 1, exclusive=True, agent="me", info=info, delay=delay)


def soon() -> float:
    return system.now() + 10
