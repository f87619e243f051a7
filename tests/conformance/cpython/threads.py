"""Our locks with the interface of threading's, and CPython's cases that run on them.

The adapters translate arguments, results and the class of an error. All other behaviour is that of holdfast.
"""

from __future__ import annotations

import contextlib
import threading
import time
import unittest
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import holdfast
from holdfast_lab.conformance.cases import Case
from tests.conformance.backends import BACKENDS
from tests.conformance.cpython import sources
from tests.conformance.cpython.ledger import Ledger
from tests.conformance.cpython.not_run import why_not_run

TTL = 600.0  # seconds: no lease of a case expires, even on a slow machine
PATIENCE = 10.0  # seconds for a thread that is about to end

# ── the adapters ─────────────────────────────────────────────────────────────────────────────────────────────────────


class ByOwner(holdfast.Lock):
    """release() releases a lease of the calling thread."""

    not_held: ClassVar[type[Exception]] = RuntimeError

    def __init__(self, client: holdfast.Client, lock: holdfast.Lock) -> None:
        super().__init__(client, lock._spec, None)

    def acquire(  # type: ignore[override]  # threading's signature instead of ours
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002  (threading's)
        timeout: float | None = None,
    ) -> bool:
        return self._take(blocking=blocking, timeout=timeout) is not None

    def release(self, n: int = 1) -> None:
        for _ in range(n):
            with self._translated():
                super().release()

    def _take(self, *, blocking: bool, timeout: float | None) -> holdfast.Lease | None:
        waits_forever = timeout is None or timeout == -1
        if not blocking and not waits_forever:
            raise ValueError("threading takes no timeout with blocking=False")
        if timeout is not None and timeout > threading.TIMEOUT_MAX:
            raise OverflowError("threading takes no timeout of more than TIMEOUT_MAX")
        return super().acquire(timeout=0 if not blocking else None if waits_forever else timeout)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except holdfast.NotHeld as error:
            raise self.not_held(str(error)) from error


class ByLease(ByOwner):
    """release() releases the oldest lease, whichever thread acquired it."""

    def __init__(self, client: holdfast.Client, lock: holdfast.Lock) -> None:
        super().__init__(client, lock)
        self._leases: deque[holdfast.Lease] = deque()

    def acquire(  # type: ignore[override]  # as above
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002
        timeout: float | None = None,
    ) -> bool:
        lease = self._take(blocking=blocking, timeout=timeout)
        if lease is not None:
            self._leases.append(lease)
        return lease is not None

    def release(self, n: int = 1) -> None:
        for _ in range(n):
            if self._leases:
                self._leases.popleft().release()
            else:
                super().release()


class ReentrantByOwner(ByOwner):
    """With the two private methods of an RLock that threading.Condition calls."""

    def _is_owned(self) -> bool:
        return self.held

    def _recursion_count(self) -> int:
        return self._last_of(self._client._engine.runtime.caller())._depth if self.held else 0


class SemaphoreByOwner(ByOwner, holdfast.Semaphore):
    not_held = ValueError


class SemaphoreByLease(ByLease, holdfast.Semaphore):
    not_held = ValueError


# ── the cases ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Suite(NamedTuple):
    """One class of CPython's cases, and the lock that they use."""

    case: str  # the class
    makes: str  # the attribute that its cases call to create a lock
    release_mode: str  # which lease release() releases
    adapter: Callable[..., Any]
    create: Callable[..., Any]  # creates the lock without the adapter


def _name() -> str:
    return uuid.uuid4().hex


def _lock(client: holdfast.Client) -> holdfast.Lock:
    return client.lock(_name())


def _rlock(client: holdfast.Client) -> holdfast.Lock:
    return client.lock(_name(), reentrant=True)


def _semaphore(client: holdfast.Client, value: int = 1) -> holdfast.Semaphore:
    return client.semaphore(_name(), limit=value)


SUITES = [
    Suite("LockTests", "locktype", "by owner", ByOwner, _lock),
    Suite("LockTests", "locktype", "by lease", ByLease, _lock),
    Suite("RLockTests", "locktype", "by owner", ReentrantByOwner, _rlock),
    Suite("SemaphoreTests", "semtype", "by lease", SemaphoreByLease, _semaphore),
    Suite("BoundedSemaphoreTests", "semtype", "by owner", SemaphoreByOwner, _semaphore),
]

# These cases call no method of a lock. They run on our locks without an adapter.
WITHOUT_ADAPTER = frozenset({"test_constructor", "test_weakref_exists", "test_weakref_deleted"})


class OnThreads(unittest.TestCase):
    """Gives a class of CPython's cases a client, and checks which leases and threads each case leaves behind."""

    suite: ClassVar[Suite]
    backend: ClassVar[Case]

    def setUp(self) -> None:
        reason = why_not_run(
            f"lock_tests.{self.suite.case}.{self._testMethodName}",
            release_mode=self.suite.release_mode,
            backend=self.backend.name,
        )
        if reason is not None:
            self.skipTest(reason)
        self._ledger = Ledger()
        self.enterContext(self._ledger.recording_warnings())
        folder = Path(self.enterContext(TemporaryDirectory()))
        _support().environment_altered = False
        super().setUp()  # counts the threads, of which there must not be more after the case
        self._client = holdfast.Client(self.backend.fresh_url(folder), ttl=TTL)
        _start_background_threads(self._client)
        self._client.subscribe(self._ledger.note)
        setattr(self, self.suite.makes, self._make)

    def tearDown(self) -> None:
        try:
            deadline = time.monotonic() + PATIENCE
            while not self._ledger.is_balanced() and time.monotonic() < deadline:
                time.sleep(0.005)
            assert self._ledger.is_balanced(), str(self._ledger)
        finally:
            self._client.close()
            super().tearDown()
        assert not _support().environment_altered, "threads were left behind; the captured stderr names them"

    def _make(self, *args: Any, **kwargs: Any) -> Any:
        lock = self.suite.create(self._client, *args, **kwargs)
        return lock if self._testMethodName in WITHOUT_ADAPTER else self.suite.adapter(self._client, lock)


def make_classes(lock_tests: ModuleType) -> list[type[unittest.TestCase]]:
    """A class for each class of CPython, each mode of release() and each backend."""
    return [
        type(
            f"Test{suite.case}{suite.release_mode.title()}On{backend.name.title()}".replace(" ", ""),
            (OnThreads, getattr(lock_tests, suite.case)),
            {"suite": suite, "backend": backend},
        )
        for suite in SUITES
        for backend in BACKENDS
    ]


def _start_background_threads(client: holdfast.Client) -> None:
    """Start the keeper and the listener before the case: cases wait until there are as many threads as before."""
    semaphore = client.semaphore(_name(), limit=1)
    with semaphore:
        assert semaphore.acquire(timeout=0.05) is None


def _support() -> Any:
    return sources.load("test.support")
