"""Our locks with the interface of asyncio's, and CPython's cases that run on them.

asyncio's locks need one or two turns of the loop, and its cases wait for them with `sleep(0)`, or hold a lock for
`sleep(0.01)`. Our locks need requests to a store. So here `sleep` ignores its argument, and waits until the store shows
that only the case itself can change the locks (`StandIn.settle`).
"""

from __future__ import annotations

import asyncio
import unittest
import uuid
import weakref
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import holdfast
from holdfast.core.leases import AcquireResult
from holdfast.core.tickets import WAITER_LEASE, LockInfo, TicketInfo
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import until, waiting_in
from tests.conformance.backends import BACKENDS
from tests.conformance.cpython.ledger import Ledger
from tests.conformance.cpython.not_run import why_not_run

TTL = 600.0  # seconds: no lease of a case expires, even on a slow machine
SOON = WAITER_LEASE / 2  # well before an abandoned waiter expires on the store

# ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────────


class Lock(holdfast.AsyncLock):
    """release() releases the oldest lease, whichever task acquired it. Local calls of asyncio are coroutines here."""

    def __init__(self, asyncio_: StandIn, lock: holdfast.AsyncLock) -> None:
        super().__init__(asyncio_.client, lock._spec, None)
        self._asyncio = asyncio_
        self._leases: deque[holdfast.AsyncLease] = deque()
        self.acquiring: list[str] = []  # the tasks that are in acquire() or at the start of `async with`

    async def acquire(self) -> bool:  # type: ignore[override]  # asyncio's signature instead of ours
        lease = await super().acquire()
        assert lease is not None
        self._leases.append(lease)
        return True

    async def release(self) -> None:
        if self._leases:
            await self._leases.popleft().release()
        else:
            await super().release()

    async def read_info(self) -> LockInfo:
        return await self._client.inspect(self.name)

    async def waiters(self) -> list[str]:
        """The names of the tasks that wait, at the store or for another task of the client."""
        at_store = [waiter.agent for waiter in (await self.read_info()).waiters]
        return [*at_store, *(claim.agent for claim in waiting_in(self._client, self.name))]

    async def _waiters(self) -> list[str]:
        await self._asyncio.settle(SOON)
        return await self.waiters()

    async def _try(self, timeout: float | None, task: asyncio.Task[Any] | None) -> AcquireResult[holdfast.AsyncLease]:
        assert task is not None
        self.acquiring.append(task.get_name())
        try:
            return await super()._try(timeout, task)
        finally:
            self.acquiring.remove(task.get_name())


class Semaphore(Lock, holdfast.AsyncSemaphore):
    async def _value(self) -> int:
        await self._asyncio.settle()
        assert self._spec.limit is not None
        return self._spec.limit - len((await self.read_info()).holders)


class StandIn:
    """The module `asyncio` for the cases: the real one, except for the names that are defined here."""

    def __init__(self, client: holdfast.AsyncClient, ledger: Ledger) -> None:
        self.client = client
        self._ledger = ledger
        self._locks: weakref.WeakSet[Lock] = weakref.WeakSet()

    def __getattr__(self, name: str) -> Any:
        ours = {"Lock": self._lock, "Semaphore": self._semaphore, "BoundedSemaphore": self._semaphore}
        return ours.get(name) or getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await self.settle()

    async def settle(self, seconds: float = 30.0) -> None:
        """Wait until only the case itself can change anything.

        Then the store shows exactly the leases and the waiters of the case: no reply to a granted attempt is missing,
        no cancelled waiter has still to be withdrawn, and no waiter can be granted.
        """
        await asyncio.sleep(0)  # lets tasks begin that the case has just created or cancelled
        await until(self._is_settled, "the store shows what the tasks have done", seconds)

    async def _is_settled(self) -> bool:
        for lock in list(self._locks):
            info = await lock.read_info()
            if not _have_fences(info.holders, self._ledger.held[lock.name]):
                return False
            waiters = await lock.waiters()
            if sorted(waiters) != sorted(lock.acquiring):
                return False
            if waiters and len(info.holders) != lock._spec.limit:
                return False
        return True

    def _lock(self) -> Lock:
        lock = Lock(self, self.client.lock(uuid.uuid4().hex))
        self._locks.add(lock)
        return lock

    def _semaphore(self, value: int = 1) -> Semaphore:
        semaphore = Semaphore(self, self.client.semaphore(uuid.uuid4().hex, limit=value))
        self._locks.add(semaphore)
        return semaphore


def _have_fences(holders: tuple[TicketInfo, ...], fences: set[int]) -> bool:
    """Whether these are the holders. With local hand-over, the fence in use is one of a range."""
    ranges = [range(holder.fence or 0, (holder.last_fence or holder.fence or 0) + 1) for holder in holders]
    return len(ranges) == len(fences) and all(any(fence in each for each in ranges) for fence in fences)


# ── the cases ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Suite(NamedTuple):
    """One class of CPython's cases, which create their locks from the module `asyncio`."""

    case: str
    release_mode: str


SUITES = [Suite("LockTests", "by lease"), Suite("SemaphoreTests", "by lease")]


class OnAsyncio(unittest.IsolatedAsyncioTestCase):
    """Gives a class of CPython's cases a client, and checks which leases each case leaves behind."""

    suite: ClassVar[Suite]
    backend: ClassVar[Case]
    cases: ClassVar[ModuleType]

    def setUp(self) -> None:
        reason = why_not_run(
            f"test_locks.{self.suite.case}.{self._testMethodName}",
            release_mode=self.suite.release_mode,
            backend=self.backend.name,
        )
        if reason is not None:
            self.skipTest(reason)
        self._ledger = Ledger()
        self.enterContext(self._ledger.recording_warnings())
        folder = Path(self.enterContext(TemporaryDirectory()))
        self._client = holdfast.AsyncClient(self.backend.fresh_url(folder), ttl=TTL)
        self._client.subscribe(self._ledger.note)
        vars(self.cases)["asyncio"] = StandIn(self._client, self._ledger)

    async def asyncTearDown(self) -> None:
        try:
            await until(self._is_balanced, "the ledger is balanced", seconds=10)
        except AssertionError:
            self.fail(str(self._ledger))
        finally:
            await self._client.close()

    async def _is_balanced(self) -> bool:
        return self._ledger.is_balanced()


def make_classes(test_locks: ModuleType) -> list[type[unittest.TestCase]]:
    """A class for each class of CPython and each backend."""
    return [
        type(
            f"Test{suite.case}{suite.release_mode.title()}On{backend.name.title()}".replace(" ", ""),
            (OnAsyncio, getattr(test_locks, suite.case)),
            {"suite": suite, "backend": backend, "cases": test_locks},
        )
        for suite in SUITES
        for backend in BACKENDS
    ]
