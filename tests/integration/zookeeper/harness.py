"""A backend without an engine, on a port that counts round trips and can lose answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import holdfast
from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.zookeeper.config import config_of
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.port import Answer, Children, Ephemerals, Get, Node, Request, Session
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.core.ports import Record
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse


class FaultyEnsemble(Ensemble):
    """An ensemble that counts round trips, except those of the heartbeat, and can lose answers."""

    trips: Sequence[Sequence[Request]] = ()  # the requests of each round trip
    lose_write_answers = False  # execute writes, but lose their answers
    before_writes: Callable[[], object] | None = None  # called once, before the next write is sent
    # Called before and after the next listing of ephemeral nodes.
    around_listing: tuple[Callable[[], object], Callable[[], object]] | None = None

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        is_heartbeat = "%sessions" in repr(requests)
        is_write = not is_heartbeat and not all(isinstance(request, Children | Get) for request in requests)
        before, self.before_writes = (self.before_writes, None) if is_write else (None, self.before_writes)
        if before is not None:
            before()
        around = None
        if any(isinstance(request, Ephemerals) for request in requests):
            around, self.around_listing = self.around_listing, None
        try:
            if around is not None:
                around[0]()
            answers = await super().call(session, requests, deadline=deadline)
        except BaseException:
            self.around_listing = self.around_listing or around  # use it for the next listing
            raise
        if around is not None:
            around[1]()
        if not is_heartbeat:
            self.trips = [*self.trips, requests]
            if self.lose_write_answers and is_write:
                raise holdfast.OutcomeUnknown(backend="test", problem="the answer was lost")
        return answers


class FixedJitter(ThreadRuntime):
    """A runtime whose jitter a test can fix."""

    fixed: float | None = None

    def jitter(self) -> float:
        return ThreadRuntime.jitter() if self.fixed is None else self.fixed


class Harness:
    """One backend and its ensemble; each verb has ten seconds."""

    def __init__(self, url: str) -> None:
        config, self.runtime = config_of(parse(url)), FixedJitter()
        self.root = config.root
        self.ensemble = FaultyEnsemble(config, BackgroundThreads(), self.runtime)
        self.backend = ZookeeperBackend(config, self.ensemble, self.runtime)

    def try_acquire(self, ticket: Claim) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=False, deadline=soon()))

    def try_acquire_all(self, tickets: Sequence[Claim]) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=soon()))

    def release(self, tickets: Sequence[Claim]) -> list[object]:
        return list(run_sync(self.backend.release(tickets, deadline=soon())))

    def locked(self) -> list[str]:
        """The names of locks in use."""
        return [info.name for info in run_sync(self.backend.locks("", deadline=soon()))]

    def advance_register(self, name: str, number: int, nonce: str = "a" * 32, *, keep: float = 60.0) -> bool:
        return run_sync(self.backend.advance_register(name, number, nonce=nonce, keep=keep, deadline=soon()))

    def read_registers(self, *names: str) -> list[int]:
        return run_sync(self.backend.read_registers(names, deadline=soon()))

    def swap_record(self, name: str, expected: str, record: Record | None, *, keep: float = 60.0) -> Record | None:
        return run_sync(self.backend.swap_record(name, expected, record, keep=keep, deadline=soon()))

    def children(self, path: str) -> list[str]:
        """The children of a node below the root; none if it does not exist."""
        (session,) = self.ensemble.sessions
        (names,) = run_sync(self.ensemble.call(session, (Children(f"{self.root}/{path}"),), deadline=soon()))
        return names if isinstance(names, list) else []

    def written_at(self, name: str) -> float:
        """When the register was last written, by the server's clock."""
        (session,) = self.ensemble.sessions
        (node,) = run_sync(self.ensemble.call(session, (Get(f"{self.root}/%marks/{name}"),), deadline=soon()))
        assert isinstance(node, Node)
        return node.mtime

    def close(self) -> None:
        run_sync(self.backend.close())

    def round_trips(self) -> int:
        """The number of round trips since the last call."""
        trips, self.ensemble.trips = self.ensemble.trips, ()
        return len(trips)


@contextlib.contextmanager
def harness(url: str) -> Iterator[Harness]:
    opened = Harness(url)
    yield opened
    opened.close()


def ticket(name: str, *, ttl: float = 20.0, delay: float = 0.0) -> Claim:
    info = '{"who": {"host": "here", "pid": 7}, "meta": {}}'
    return Claim(name, ThreadRuntime().nonce(), ttl, 1, exclusive=True, agent="me", info=info, delay=delay)


def soon() -> float:
    return system.now() + 10
