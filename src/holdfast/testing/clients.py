"""The clients of a world: Client and AsyncClient on a store that they share, with its clock and its faults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from holdfast.aio.client import AsyncClient
from holdfast.aio.lock_all import AsyncLockAll
from holdfast.aio.locks import AsyncLease, AsyncLock, AsyncRWLock, AsyncSemaphore
from holdfast.backends.memory.io.aio import AsyncioPort
from holdfast.backends.memory.io.blocking import BlockingPort
from holdfast.backends.memory.port import MemoryPort, QueueEntry, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.base_client import BaseClient, LockAllT, LockT, RWLockT, SemaphoreT
from holdfast.core.engine import Engine
from holdfast.core.events import Event
from holdfast.core.leases import BaseLease
from holdfast.core.names import Duration
from holdfast.core.ports import Record, Runtime
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, Notification, Waiting
from holdfast.errors import BackendUnavailable, OutcomeUnknown, UsageError
from holdfast.runtimes.threads import run_sync
from holdfast.testing.clock import (
    DRIVER_MAX,
    Clock,
    Process,
    WorldTaskRuntime,
    WorldThreadRuntime,
    endless_wait,
)
from holdfast.threads.client import Client
from holdfast.threads.lock_all import LockAll
from holdfast.threads.locks import Lease, Lock, RWLock, Semaphore

L = TypeVar("L", bound=BaseLease)
T = TypeVar("T")

_numbers = itertools.count(1)


class Failure(NamedTuple):
    """The planned failure of one request."""

    verb: str
    error: type[BackendUnavailable | OutcomeUnknown]
    applied: bool  # the request is executed, and the answer is lost
    process: Process | None  # None: of any client


class SharedStore:
    """The store of a world, with its clock and the planned failures."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.url = f"memory://world-{os.getpid()}-{next(_numbers)}"
        self.failures: list[Failure] = []
        self.own: Process | None = None  # the process of the world itself, whose requests never fail
        self.on_acquired: list[Callable[[], object]] = []  # called when a client has acquired a lock
        self._store = Store()
        self._pid = os.getpid()

    def backend(self, process: Process, port_type: type[_FaultyPort], runtime: Runtime) -> FaultyBackend:
        """A new backend for the process."""
        if os.getpid() != self._pid:
            raise UsageError("a world belongs to the process that made it: use a real store in a child process")
        port = port_type(self._store, self.url, runtime)
        port.process = process
        return FaultyBackend(self, process, port, runtime)

    def entries(self, name: str, *, granted: bool) -> list[QueueEntry]:
        """The holders of a lock, or its waiters."""
        return self._store.change(lambda store: _entries(store, name, granted, self.clock.now), self.url)

    def remove(self, lease: BaseLease, backend: FaultyBackend) -> bool:
        """Remove the ticket of the lease. Returns whether it was held."""
        return self._store.change(lambda store: backend._release(store, lease._claim), self.url)

    def next_failure(self, verb: str, process: Process) -> Failure | None:
        """The planned failure of this request, which is used up."""
        for failure in [] if process is self.own else self.failures:
            if failure.verb == verb and failure.process in (None, process):
                self.failures.remove(failure)
                return failure
        return None


class _FaultyPort(BlockingPort):
    """A port that a partition cuts off."""

    process: Process

    async def change(self, step: Callable[[Store], T], *, deadline: float) -> T:
        if self.process.is_cut_off:
            raise BackendUnavailable(backend=self._url, problem="the world has cut this client off (partition)")
        return await super().change(step, deadline=deadline)

    def wake(self, notification: Notification) -> None:
        if not self.process.is_cut_off:
            super().wake(notification)


class _FaultyTaskPort(_FaultyPort, AsyncioPort):
    """The same for asyncio."""


class FaultyBackend(MemoryBackend):
    """The store in memory, with requests that fail on command."""

    steals = False  # a lock is acquired even if others hold it or wait for it

    def __init__(self, shared: SharedStore, process: Process, port: MemoryPort, runtime: Runtime) -> None:
        super().__init__(shared.url, port, runtime)
        self._shared = shared
        self._process = process
        self._is_async = isinstance(runtime, WorldTaskRuntime)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        return await self._send(
            "try_acquire", lambda: MemoryBackend.try_acquire(self, claim, queue=queue, deadline=deadline)
        )

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        return await self._send("try_acquire", lambda: MemoryBackend.try_acquire_all(self, claims, deadline=deadline))

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool]:
        return await self._send("release", lambda: MemoryBackend.release(self, claims, deadline=deadline))

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        return await self._send("renew", lambda: MemoryBackend.renew(self, claims, deadline=deadline))

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._send(
            "advance_register",
            lambda: MemoryBackend.advance_register(self, name, number, nonce=nonce, keep=keep, deadline=deadline),
        )

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        def swap() -> Awaitable[Record | None]:
            return MemoryBackend.swap_record(self, name, expected, record, keep=keep, deadline=deadline)

        if record is None and not expected:  # it only reads
            return await swap()
        return await self._send("swap_record", swap)

    async def wait(self, claim: Claim, until: float) -> None:
        clock, now = self._shared.clock, self._runtime.now()
        if claim.state is None:
            claim.state = now  # when it began to wait
        if now - claim.state > DRIVER_MAX and (clock._is_driver_task if self._is_async else clock._is_driver_thread):
            raise endless_wait()
        await super().wait(claim, until)

    async def _send(self, verb: str, request: Callable[[], Awaitable[T]]) -> T:
        failure = self._shared.next_failure(verb, self._process)
        if failure is not None and not failure.applied:
            raise failure.error(backend=self.url, problem="the world lets this request fail (fail_next)")
        answer = await request()
        if failure is not None:
            raise failure.error(backend=self.url, problem="the world drops the answer to this request (fail_next)")
        return answer

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        if not self.steals:
            return super()._try_acquire(store, claim, queue=queue)
        entries = store.queues.pop(claim.name, {})
        outcome = super()._try_acquire(store, claim, queue=queue)
        store.queues[claim.name].update((nonce, entry) for nonce, entry in entries.items() if not entry.granted)
        return outcome


class WorldEngine(Engine[L]):
    """The engine. It also records which leases no code works under any more."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended: set[str] = set()  # nonces

    def end_lost_body(self, lease: L) -> None:
        super().end_lost_body(lease)
        self.ended.add(lease._claim.nonce)

    def end(self, lease: L) -> None:
        super().end(lease)
        self.ended.add(lease._claim.nonce)


class _InWorld(BaseClient[L, LockT, SemaphoreT, RWLockT, LockAllT]):
    """The part of both clients that belongs to the world."""

    def __init__(self, shared: SharedStore, ttl: Duration) -> None:
        self.shared, self.process = shared, Process(shared.clock)
        self.received: list[Event] = []
        super().__init__(shared.url, ttl=ttl)
        self.subscribe(self._receive)

    def _receive(self, event: Event) -> None:
        self.received.append(event)
        if event.kind == "acquired":
            for function in list(self.shared.on_acquired):
                function()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a client of a world belongs to its process and cannot be pickled")


class WorldClient(_InWorld[Lease, Lock, Semaphore, RWLock, LockAll], Client):
    """A Client of a world."""

    def close(self) -> None:
        self.process.is_closing = True
        super().close()

    def end(self) -> None:
        """Close it at the end of the world."""
        self.close()

    def _start(self) -> WorldEngine[Lease]:
        runtime = WorldThreadRuntime(self.process)
        backend = self.shared.backend(self.process, _FaultyPort, runtime)
        return WorldEngine(backend, runtime, self._events, Lease, self._required)


class WorldAsyncClient(_InWorld[AsyncLease, AsyncLock, AsyncSemaphore, AsyncRWLock, AsyncLockAll], AsyncClient):
    """An AsyncClient of a world."""

    async def close(self) -> None:
        self.process.is_closing = True
        await super().close()

    def end(self) -> None:
        """At the end of the world, its loop has usually ended. If not, its tasks end at the next turn of the loop."""
        end_without_loop(self)

    def _start(self) -> WorldEngine[AsyncLease]:
        self._runtime = runtime = WorldTaskRuntime(self.process)
        backend = self.shared.backend(self.process, _FaultyTaskPort, runtime)
        return WorldEngine(backend, runtime, self._events, AsyncLease, self._required)


def end_without_loop(client: AsyncClient) -> None:
    """Close a client on a store in memory outside of its loop. The leases that it holds end with the store."""
    engine = client._current
    if client._closed or engine is None:
        return
    client._closed = True
    for lease in leases_of(client):
        engine._end(lease, "its client was closed", "closed")
    engine.is_closed = True
    if not engine.runtime.run_in_loop(engine._keeper.stop):
        engine._keeper.stop()
    run_sync(engine.backend.close())


def is_in_use(lost: BaseLease) -> bool:
    """Whether the program may still work under this lost lease: it has not released it."""
    engine = lost._engine
    return not isinstance(engine, WorldEngine) or lost._claim.nonce not in engine.ended


def leases_of(client: Client | AsyncClient) -> list[Any]:
    """The leases that this client holds."""
    engine: Engine[Any] | None = client._current
    if engine is None:
        return []
    return [lease for reference in list(engine._leases.values()) if (lease := reference()) is not None and lease.held]


def _entries(store: Store, name: str, granted: bool, now: float) -> list[QueueEntry]:  # noqa: FBT001
    return [entry for entry in store.queues.get(name, {}).values() if entry.granted is granted and entry.expires > now]
