"""A world: clients on one store in memory, a clock that is moved by hand, and faults on command."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar, Unpack, cast

from holdfast.aio.client import AsyncClient
from holdfast.aio.locks import AsyncLease
from holdfast.base_client import DEFAULT_TTL
from holdfast.core.events import Event
from holdfast.core.lease_groups import LeaseGroup
from holdfast.core.leases import BaseLease
from holdfast.core.locks import LockOptions
from holdfast.core.names import Duration
from holdfast.core.tickets import process_text
from holdfast.errors import BackendUnavailable, ConfigurationError, LockLost, OutcomeUnknown, UsageError
from holdfast.runtimes.threads import run_sync, start_thread
from holdfast.testing.clients import (
    Failure,
    FaultyBackend,
    SharedStore,
    WorldAsyncClient,
    WorldClient,
    is_in_use,
    leases_of,
)
from holdfast.testing.clock import DRIVER_MAX, SETTLE_MAX, Clock
from holdfast.threads.client import Client
from holdfast.threads.locks import Lease

P = ParamSpec("P")
T = TypeVar("T")

VERBS = ("try_acquire", "renew", "release", "advance_register", "swap_record")
_INSIDE = 0.001  # seconds on the clock that a step of `assert_excluded` takes


class World:
    """Clients on one store in memory, whose clock moves only by hand: `world.clock.advance(31)`.

    Each client stands for a process of its own. No real time passes in a wait: threads and tasks wait until the clock
    is moved. Only a wait of the test itself (the thread that made the world, the first task that uses it) moves the
    clock, because nothing else could do it then. The methods return when no thread has anything left to do before the
    clock moves. A world belongs to one process. `with` closes it.

    >>> from holdfast.testing import World
    >>> with World() as world:
    ...     lease = world.client().lock("report", ttl=30, renew=False).acquire()
    ...     world.clock.advance(31)
    ...     lease.lost
    True
    """

    def __init__(self) -> None:
        self._shared = SharedStore()
        self.clock = self._shared.clock
        self._clients: list[WorldClient | WorldAsyncClient] = []
        self._kept: list[object] = []  # leases, and results that may be leases: they are released by close()
        self._other = WorldClient(self._shared, DEFAULT_TTL)  # the other process of `hold` and `steal`
        self._shared.own = self._other.process
        self._other_backend = cast("FaultyBackend", self._other._engine.backend)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────

    def client(self, *, ttl: Duration = DEFAULT_TTL) -> Client:
        """A new client, as another process has it."""
        client = WorldClient(self._shared, ttl)
        self._clients.append(client)
        return client

    def async_client(self, *, ttl: Duration = DEFAULT_TTL) -> AsyncClient:
        """A new client for asyncio, as another process has it."""
        self.clock._adopt_task()
        client = WorldAsyncClient(self._shared, ttl)
        self._clients.append(client)
        return client

    def events(self, client: Client | AsyncClient) -> list[Event]:
        """All events of this client so far."""
        self.clock.settle()
        return list(self._of(client).received)

    def start(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Running[T]:
        """Run a function in another thread. Returns when it waits for the clock of the world, or has ended."""
        running: Running[T] = Running(self.clock)
        self._kept.append(running)
        name = getattr(function, "__qualname__", "function")
        run = self.clock._started(name)

        def body() -> None:
            with self.clock._running_as(run):
                running._run(lambda: function(*args, **kwargs))

        start_thread(body, f"world-{name}")
        self.clock.settle()
        return running

    def wait_for_waiters(self, name: str, count: int = 1) -> None:
        """Return when that many callers wait for the lock. For threads and tasks that the program itself starts.

        Raises:
            AssertionError: there are fewer after 30 s of real time.
        """
        until = time.monotonic() + SETTLE_MAX
        while len(entries := self._shared.entries(name, granted=False)) < count:
            if time.monotonic() > until:
                raise AssertionError(f"{len(entries)} callers wait for lock {name!r}, not {count}")
            self.clock._await_change(0.01)
        self.clock.settle()

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, lease: Lease | AsyncLease | LeaseGroup) -> None:
        """End the lease on the store, and report it to its holder at once, as lost. The lock is free."""
        self._end(_members(lease), _report_lost)

    def expire(self, lease: Lease | AsyncLease | LeaseGroup) -> None:
        """End the lease as if its ttl had passed without a renewal, without moving the clock. The lock is free."""

        def expire(each: BaseLease) -> None:
            each._deadline = self.clock.now
            each._engine.expire(each)

        self._end(_members(lease), expire)

    def steal(self, name: str, **options: Unpack[LockOptions]) -> Lease:
        """Break the lock, and acquire it as another process, before its waiters. Returns the lease of the new holder.

        The old holder does not know this before its next renewal. A resource that checks fences refuses its writes.
        """
        self._other_backend.steals = True
        try:
            return self.hold(name, **options)
        finally:
            self._other_backend.steals = False

    def hold(self, name: str, **options: Unpack[LockOptions]) -> Lease:
        """Acquire the lock as another process, without waiting: `with world.hold("report"): …`.

        Raises:
            AssertionError: it is held, or others wait for it.
        """
        self.clock._adopt_task()
        engine = self._other._engine
        lock = self._other.lock(name, **options)
        lease = run_sync(engine.acquire_new(lock, engine.runtime.caller(), 0.0)).lease
        if lease is None:
            raise AssertionError(f"lock {name!r} cannot be held by the world: {self._state(name)}")
        self._kept.append(lease)
        return lease

    def partition(self, client: Client | AsyncClient) -> None:
        """Cut the client off: its requests raise BackendUnavailable, and no notification reaches it."""
        self._of(client).process.is_cut_off = True

    def pause(self, client: Client | AsyncClient) -> None:
        """Stop the client, as a stopped process: it renews nothing and reports nothing, and its waits do not end.

        Calls that do not wait are executed: the thread that makes them is not stopped.
        """
        self._of(client).process.is_paused = True

    def heal(self, client: Client | AsyncClient | None = None) -> None:
        """End the partition and the pause of this client, or of all."""
        for each in self._clients if client is None else [self._of(client)]:
            each.process.is_cut_off = each.process.is_paused = False
        self.clock._wake()
        self.clock.settle()

    def fail_next(
        self,
        verb: str,
        error: type[BackendUnavailable | OutcomeUnknown],
        *,
        applied: bool = False,
        client: Client | AsyncClient | None = None,
    ) -> None:
        """Let the next request of this kind fail. Calls add up: two calls let the next two fail.

        Args:
            verb: "try_acquire", "renew" or "release" of a lock; "advance_register", as of `once_per`, which claims a
                period by it; "swap_record", by which `once` writes its record before and after the body.
            error: BackendUnavailable: nothing was changed. OutcomeUnknown: there is no answer.
            applied: The store executes the request, and only the answer is lost. Only with OutcomeUnknown.
            client: Only a request of this client fails.

        Raises:
            ConfigurationError: an argument is refused.
        """
        if verb not in VERBS:
            raise ConfigurationError(f"verb must be one of {', '.join(VERBS)}, not {verb!r}")
        if applied and not issubclass(error, OutcomeUnknown):
            raise ConfigurationError("applied=True needs OutcomeUnknown: BackendUnavailable says that nothing changed")
        process = None if client is None else self._of(client).process
        self._shared.failures.append(Failure(verb, error, applied, process))

    # ── assertions ───────────────────────────────────────────────────────────────────────────────────────────────

    def assert_held(self, name: str, by: Client | AsyncClient | None = None) -> None:
        """Assert that the lock is held, by this client if one is given, according to the store."""
        self.clock.settle()
        entries = self._shared.entries(name, granted=True)
        if by is not None:
            owned = {lease._claim.nonce for lease in leases_of(self._of(by))}
            entries = [entry for entry in entries if entry.claim.nonce in owned]
        if not entries:
            raise AssertionError(f"lock {name!r} is not held{'' if by is None else f' by {by!r}'}: {self._state(name)}")

    def assert_free(self, name: str) -> None:
        """Assert that the lock has no holder, according to the store."""
        self.clock.settle()
        if self._shared.entries(name, granted=True):
            raise AssertionError(f"lock {name!r} is not free: {self._state(name)}")

    def assert_excluded(self, function: Callable[[Callable[..., None]], object], n: int = 8) -> None:
        """Run `function(step)` in `n` threads at once, and assert that no two are in `step` at the same time.

        `function` runs the program, and passes `step` to it in place of the work that the lock protects.

        Raises:
            AssertionError: two were in `step` together, or none was.
        """
        section = _Section()

        def step(*_args: object, **_kwargs: object) -> None:
            section.enter()
            self.clock.sleep(_INSIDE)  # the other threads run until they wait too
            section.leave()

        callers = [self.start(function, step) for _ in range(n)]
        until = self.clock.now + DRIVER_MAX
        while not all(caller.done for caller in callers) and self.clock._move(until):
            self.clock.settle()
        for caller in callers:
            caller.result()
        section.check(n)

    async def async_assert_excluded(
        self, function: Callable[[Callable[..., Awaitable[None]]], Awaitable[object]], n: int = 8
    ) -> None:
        """As `assert_excluded`, with `n` tasks that run `await function(step)`, in which `await step()` is the work."""
        section = _Section()

        async def step(*_args: object, **_kwargs: object) -> None:
            section.enter()
            await self.clock.async_sleep(_INSIDE)
            section.leave()

        async def call() -> None:
            await function(step)

        tasks = [asyncio.create_task(call()) for _ in range(n)]
        until = self.clock.now + DRIVER_MAX
        await self.clock.async_settle()
        while not all(task.done() for task in tasks) and self.clock._move(until):
            await self.clock.async_settle()
        for task in tasks:
            if not task.done():
                task.cancel()
                raise UsageError("a task still waits after an hour of the clock")
            task.result()
        section.check(n)

    def assert_checks_lease(self, function: Callable[[Callable[..., None]], object]) -> None:
        """Assert that the program checks its lease before each step, and does no step after it has lost the lock.

        `function(step)` runs the program, and passes `step` to it in place of the work that the lock protects. It is
        called several times: once without a loss, then with a loss after the lock was acquired, and after each step but
        the last. A call with a loss may raise LockLost, return, or release the lost lease and acquire the lock again.

        Raises:
            AssertionError: a step was done without the lock, or after its loss; or there was no step.
        """
        count = self._probe(function, None)
        for lost_after in range(count):
            self._probe(function, lost_after)

    async def async_assert_checks_lease(
        self, function: Callable[[Callable[..., Awaitable[None]]], Awaitable[object]]
    ) -> None:
        """As `assert_checks_lease`, for `await function(step)`, in which `await step()` is the work."""
        count = await self._async_probe(function, None)
        for lost_after in range(count):
            await self._async_probe(function, lost_after)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close all clients. Clients for asyncio whose loop still runs are to be closed in it before."""
        self.clock._own.is_closing = True
        for client in self._clients:
            client.process.is_cut_off = client.process.is_paused = False
        self.clock._wake()
        for client in [*self._clients, self._other]:
            client.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── internal ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _probe(self, function: Callable[[Callable[..., None]], object], lost_after: int | None) -> int:
        probe = _Probe(self, lost_after)

        def step(*_args: object, **_kwargs: object) -> None:
            probe.step()

        with probe.watching(probe.lose):
            function(step)
        return probe.check()

    async def _async_probe(
        self, function: Callable[[Callable[..., Awaitable[None]]], Awaitable[object]], lost_after: int | None
    ) -> int:
        probe = _Probe(self, lost_after)

        async def step(*_args: object, **_kwargs: object) -> None:
            probe.step()
            await self.clock.async_settle()  # a loss cancels the body here

        def lose_soon() -> None:
            # At the next await, because no loss is reported between an acquire and its body.
            asyncio.get_running_loop().call_soon(probe.lose)

        with probe.watching(lose_soon):
            await function(step)
        return probe.check()

    def _leases(self) -> list[BaseLease]:
        """The leases that the clients of this world hold."""
        return [lease for client in self._clients for lease in leases_of(client)]

    def _end(self, leases: Sequence[BaseLease], report: Callable[[BaseLease], None]) -> None:
        self.clock.settle()
        for each in leases:
            if not self._shared.remove(each, self._other_backend):
                raise UsageError(f"{each!r} is not held in this world")
        for each in leases:
            report(each)
        self.clock.settle()

    def _state(self, name: str) -> str:
        holders, waiters = self._shared.entries(name, granted=True), self._shared.entries(name, granted=False)
        held_by = ", ".join(f"{process_text(entry.claim.info)} {entry.claim.agent}" for entry in holders) or "none"
        return f"its holder is {held_by}; {len(waiters)} wait"

    def _of(self, client: Client | AsyncClient) -> WorldClient | WorldAsyncClient:
        if isinstance(client, WorldClient | WorldAsyncClient) and client.shared is self._shared:
            return client
        raise UsageError(f"{client!r} is not a client of this world: make it with world.client()")


class Running(Generic[T]):
    """A function that runs in another thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    @property
    def done(self) -> bool:
        """It has returned or raised. If not, it waits for the clock."""
        self._clock.settle()
        return self._outcome.done()

    def result(self) -> T:
        """Its result; raises its exception.

        Raises:
            UsageError: it still waits: move the clock.
        """
        if not self.done:
            raise UsageError(f"the function still waits, at {self._clock.now:g} s: move the clock")
        return self._outcome.result()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._outcome.set_result(function())
        except BaseException as error:
            self._outcome.set_exception(error)


class _Section:
    """Counts the callers that are in the protected work."""

    def __init__(self) -> None:
        self._inside = self._most = self._steps = 0

    def enter(self) -> None:
        self._steps += 1
        self._inside += 1
        self._most = max(self._most, self._inside)

    def leave(self) -> None:
        self._inside -= 1

    def check(self, n: int) -> None:
        if not self._steps:
            raise AssertionError("no caller has done a step: `step` is to be called in place of the protected work")
        if self._most > 1:
            raise AssertionError(f"{self._most} of {n} callers were in the protected work at the same time")


class _Probe:
    """One call of a program whose lock is lost after a number of steps."""

    def __init__(self, world: World, lost_after: int | None) -> None:
        self._world = world
        self._lost_after = lost_after
        self.lost: list[BaseLease] = []
        self._steps = 0
        self._problem = ""

    @contextlib.contextmanager
    def watching(self, lose: Callable[[], None]) -> Iterator[None]:
        """The call of the program. `lose` is called after an acquire, if that is when the lock is to be lost."""

        def acquired() -> None:
            if self._lost_after == 0 and not self.lost:
                lose()

        on_acquired = self._world._shared.on_acquired
        on_acquired.append(acquired)
        try:
            yield
        except LockLost:
            if not self.lost:
                raise
        finally:
            on_acquired.remove(acquired)

    def step(self) -> None:
        """Count a step, and lose the lock if that is to happen after this step."""
        self._steps += 1
        problem = ""
        if any(map(is_in_use, self.lost)):
            when = "it was acquired" if self._lost_after == 0 else f"step {self._lost_after}"
            problem = (
                f"step {self._steps} was done although the lock was lost after {when}: the program has to call "
                "lease.check() before each step"
            )
        elif not self._world._leases():
            problem = (
                f"step {self._steps} was done while no lock of this world was held: does the program hold a "
                "lock there, and does it use a client of `world.client()`?"
            )
        self._problem = self._problem or problem
        if self._steps == self._lost_after:
            self.lose()

    def lose(self) -> None:
        self.lost = self._world._leases()
        self._world._end(self.lost, _report_lost)

    def check(self) -> int:
        """Raise AssertionError if the program is wrong; else return the number of steps."""
        if not self._steps and self._lost_after is None:
            self._problem = "the program has done no step: `step` is to be called in place of the protected work"
        if self._problem:
            raise AssertionError(self._problem)
        return self._steps


def _members(lease: BaseLease | LeaseGroup) -> Sequence[BaseLease]:
    return lease._leases if isinstance(lease, LeaseGroup) else [lease]


def _report_lost(lease: BaseLease) -> None:
    lease._engine.lose(lease, "the world has ended this lease (lose)")
