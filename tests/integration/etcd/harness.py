"""A backend without an engine, on a port that counts requests and can delay them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import holdfast
from holdfast.backends.etcd.config import config_of
from holdfast.backends.etcd.io.cluster import Cluster, backend_on
from holdfast.backends.etcd.port import Answer
from holdfast.backends.net.blocking import BackgroundThreads, BlockingPoller
from holdfast.core.ports import Backend, KeepsRecords, Record
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse


class FaultyCluster(Cluster):
    """A cluster whose requests can be held back, and whose answers can be lost."""

    hold_next = False  # hold back the next request, and raise OutcomeUnknown
    hold_after = 0  # pass this many requests, then hold back the next one; 0: hold back none
    repeat_elsewhere = False  # instead of the error, return the answer of another member to the same request
    lose_write_answers = False  # execute conditional transactions, but lose their answers
    held_back: tuple[str, Mapping[str, Any]] | None = None  # the request
    methods: Sequence[str] = ()  # of all requests, in order
    longest_answer = 0  # characters

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        self.methods = [*self.methods, method]
        if not self.hold_next:
            self.hold_next = self.hold_after == 1
            self.hold_after = max(0, self.hold_after - 1)
            answer = await super().call(method, message, deadline=deadline, once=once)
            self.longest_answer = max(self.longest_answer, len(str(answer)))
            if self.lose_write_answers and message.get("compare"):
                raise holdfast.OutcomeUnknown(backend="test", problem="the answer was lost")
            return answer
        self.hold_next, self.held_back = False, (method, message)
        if not self.repeat_elsewhere:
            raise holdfast.OutcomeUnknown(backend="test", problem="the request is held back")
        return (await super().call(method, message, deadline=deadline, once=once))._replace(repeated=True)

    def deliver(self) -> Answer:
        """Send the request that was held back."""
        assert self.held_back is not None
        return run_sync(super().call(*self.held_back, deadline=soon()))


class Harness:
    """One backend and its cluster; each verb has five seconds."""

    def __init__(self, url: str) -> None:
        config, runtime = config_of(parse(url)), ThreadRuntime()
        self.cluster = FaultyCluster(config, BlockingPoller(), BackgroundThreads(), runtime)
        self.backend: Backend = backend_on(self.cluster, config, runtime)

    def try_acquire(self, ticket: Claim, *, queue: bool = False) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=queue, deadline=soon()))

    def try_acquire_all(self, tickets: Sequence[Claim]) -> Sequence[Granted | Waiting]:
        return run_sync(self.backend.try_acquire_all(tickets, deadline=soon()))

    def release(self, tickets: Sequence[Claim]) -> list[object]:
        return list(run_sync(self.backend.release(tickets, deadline=soon())))

    def locked(self) -> list[str]:
        """The names of locks in use."""
        return [info.name for info in run_sync(self.backend.locks("", deadline=soon()))]

    def advance_register(self, name: str, number: int, nonce: str = "a" * 32, keep: float = 60.0) -> bool:
        return run_sync(self.backend.advance_register(name, number, nonce=nonce, keep=keep, deadline=soon()))

    def read_registers(self, *names: str) -> list[int]:
        return list(run_sync(self.backend.read_registers(names, deadline=soon())))

    def swap_record(self, name: str, expected: str, record: Record | None, keep: float = 60.0) -> Record | None:
        assert isinstance(self.backend, KeepsRecords)
        return run_sync(self.backend.swap_record(name, expected, record, keep=keep, deadline=soon()))

    def calls(self) -> list[str]:
        """The methods of all requests since the last call."""
        methods, self.cluster.methods = list(self.cluster.methods), ()
        return methods


@contextlib.contextmanager
def harness(url: str) -> Iterator[Harness]:
    """A harness that has its etcd lease already, as after the first acquire."""
    opened = Harness(url)
    first = ticket("warm")
    opened.try_acquire(first)
    opened.release([first])
    opened.calls()
    yield opened
    run_sync(opened.backend.close())


def ticket(name: str, *, ttl: float = 30.0, delay: float = 0.0) -> Claim:
    info = '{"who": {"host": "here", "pid": 7}, "meta": {}}'
    return Claim(name, ThreadRuntime().nonce(), ttl, 1, exclusive=True, agent="me", info=info, delay=delay)


def soon() -> float:
    return system.now() + 5
