"""holdfast for asyncio: `client.py`, awaited. The same names and words; a test keeps them alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from holdfast.base_client import BaseClient, BaseRWLock
from holdfast.core import names
from holdfast.core.decorators import Plan, make_plan_locked, make_plan_once, spec_of, with_lease
from holdfast.core.engine import AcquireResult, Engine
from holdfast.core.leases import BaseLease, LockSpec
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, BaseLock, LockOptions, Unset
from holdfast.core.periods import claim
from holdfast.core.ports import Inherits
from holdfast.core.tickets import LockInfo
from holdfast.errors import AcquireTimeout
from holdfast.lease_groups.aio import AsyncLockAll
from holdfast.primitives import Primitive
from holdfast.runtimes.aio import AsyncBlocks, AsyncioRuntime, calling_task
from holdfast.runtimes.blocks import ExitOfBlock, TaskBlock, entered_block
from holdfast.runtimes.exits import release_at_exit
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import opener

if TYPE_CHECKING:
    from asyncio import Task

    from holdfast.core.ports import Backend, Caller
    from holdfast.elections.aio import AsyncElection
    from holdfast.url import Address

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)


class AsyncLease(AsyncBlocks, BaseLease):
    """One successful acquisition, until it is released or lost. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ("_bodies",)

    async def release(self) -> None:
        """Release the lock, from any task.

        Raises:
            LockLost: the lease had ended or was broken before this. Work since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer. The keeper repeats the release, and this may be called again.
        """
        self._check_loop()
        await self._engine.release(self)

    async def renew(self) -> None:
        """Keep the lock for another `ttl` seconds from now. Only needed with renew=False.

        Raises:
            LockLost: the lease had ended or was broken; stop using the resource.
            BackendError: no answer; the old deadline stays.
        """
        self._check_loop()
        await self._engine.renew(self)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait for the loss of the lease: True at a loss, False after `timeout` seconds or a release."""
        self._check_loop()
        return await self._engine.wait_lost(self, names.check_timeout(timeout))

    def _check_loop(self) -> None:
        runtime = self._engine.runtime
        if isinstance(runtime, AsyncioRuntime):
            runtime.check_loop()

    async def _release_at_end(self) -> None:
        await self._engine.release_after_body(self)

    @property
    def _cancels_bodies(self) -> bool:
        return self._spec.on_lost != "event"


class AsyncLock(BaseLock[AsyncLease]):
    """A named lock. Tasks can share one object, because the state is in the leases."""

    def __init__(self, client: AsyncClient, spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec, timeout)
        self._client = client

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: float | Unset | None = UNSET,
        **unknown: Never,
    ) -> Coroutine[Any, Any, AsyncLease | None]:
        """Acquire the lock and return its Lease, or None after `timeout` seconds (0: do not wait, None: wait forever).

        `blocking=False` is the same as timeout=0, as in threading. Give only one of the two.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            WouldDeadlock: this thread or task holds it, and it is not reentrant.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server gave no answer; never raised for a busy lock.
        """
        names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        # Here, not in the coroutine: the lease belongs to the task that calls this, also if the coroutine runs in a
        # task of its own, as in `asyncio.gather`, and up to Python 3.11 in `asyncio.wait_for`.
        return self._acquire(self._timeout_of(blocking, timeout), calling_task())

    async def release(self) -> None:
        """Release the lease that this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        await self._last_of(self._caller()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds it, by the local clock."""
        return self._is_held_by(self._caller())

    async def locked(self) -> bool:
        """Whether a client holds it now, according to the server."""
        return bool((await self._client.inspect(self.name)).holders)

    def __aenter__(self) -> Coroutine[Any, Any, AsyncLease]:
        return self._enter_block(entered_block(self), calling_task())

    __aexit__ = ExitOfBlock(TaskBlock)

    async def _enter_block(self, block: TaskBlock | None, task: Task[Any] | None) -> AsyncLease:
        result = await self._try(self._timeout, task)
        if result.lease is None:
            raise AcquireTimeout(lock=self.name, waited=result.waited, holder=result.holder)
        return result.lease._enter_body(block, task)

    async def _acquire(self, timeout: float | None, task: Task[Any] | None) -> AsyncLease | None:
        return (await self._try(timeout, task)).lease

    def _last_entered(self) -> AsyncLease:
        return self._last_of(self._caller())

    def _caller(self) -> Caller:
        return self._client._engine.runtime.caller()

    async def _try(self, timeout: float | None, task: Task[Any] | None) -> AcquireResult[AsyncLease]:
        caller = None if task is None else AsyncioRuntime.caller_of(task)
        return await self._client._engine.acquire(self, timeout, caller)


class AsyncSemaphore(AsyncLock):
    """A lock that `limit` callers may hold at once. One thread or task may acquire several permits."""


class AsyncRWLock(BaseRWLock[AsyncLock]):
    """A lock for many readers or one writer, served in order: a waiting writer blocks later readers."""


class AsyncLocked(Protocol):
    """The decorator that `locked` returns: the function keeps its parameters and its result."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class AsyncLockedOrSkipped(Protocol[D_co]):
    """The decorator that `locked` returns with busy="skip": a call may also return `skipped`."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | D_co]]: ...


class AsyncLockedWithLease(Protocol):
    """The decorator that `locked` returns with lease=: the first parameter, or the one after self, is filled in."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


class AsyncLockedOrSkippedWithLease(Protocol[D_co]):
    """The decorator with both: the lease is filled in, and a call may also return `skipped`."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | D_co]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, AsyncLease, P], Coroutine[Any, Any, T]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T | D_co]]: ...


class AsyncClient(BaseClient[AsyncLease, AsyncLock, AsyncSemaphore, AsyncRWLock, AsyncLockAll]):
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

    Instead of the URL it takes a client object of redis-py (same servers and credentials, separate connections), or a
    list of redis:// URLs (independent servers, of which a majority decides: redlock). The options after the question
    mark of a URL may also be given as keywords: `prefix="jobs:"`. With `require={"exclusion": "durable-authority",
    "order": "FIFO"}` a store with weaker `guarantees` is refused.

    It belongs to the event loop that first uses it.

    >>> import asyncio, holdfast
    >>> async def main():
    ...     async with holdfast.AsyncClient("memory://") as client:
    ...         async with client.lock("report", ttl=10, timeout=5) as lease:
    ...             lease.check()
    ...             return await client.lock("report").acquire(timeout=0) is None
    >>> asyncio.run(main())
    True
    """

    _runtime_name = "aio"
    _lock_type = AsyncLock
    _semaphore_type = AsyncSemaphore
    _rwlock_type = AsyncRWLock
    _lock_all_type = AsyncLockAll

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["wait", "raise"] = "wait",
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLocked: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[None]: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        skipped: D,
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[D]: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["wait", "raise"] = "wait",
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedWithLease: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[None]: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        skipped: D,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[D]: ...

    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: str = "wait",
        skipped: object = UNSET,
        lease: str | None = None,
        **options: Unpack[LockOptions],
    ) -> Any:
        """A decorator: each call of the function holds the lock that its arguments name, until the call returns.

        Args:
            name: Text with fields over the parameters, as in str.format: "report:{day}", "order:{order.id}",
                "stock:{item[sku]}".
            name_of: Instead of `name`: a function of the same arguments that returns the name.
            busy: "wait" waits for `timeout` seconds, then raises AcquireTimeout; "skip" returns without running the
                body, at once or after `timeout`; "raise" raises AcquireTimeout at once.
            skipped: The result of a skipped call. Default: None.
            lease: The parameter that is filled in with the Lease; callers do not pass it. It is the first one, or the
                one after self. A keyword-only parameter works too, but type checkers refuse it.
            options: Those of `lock`.

        The name for a method may use `{self.…}`. @staticmethod and @classmethod go above this decorator. With
        reentrant=True the function may call itself with the same name; without it that raises WouldDeadlock, or counts
        as busy if the call does not wait. Client is for plain functions, AsyncClient for coroutine functions.

        Raises:
            TypeError: at decoration: `@client.locked` without a call.
            ConfigurationError: at decoration: an argument, a field or the kind of function is refused; at a call: the
                name is empty or too long.
        """
        plan = make_plan_locked(name, name_of, busy=busy, skipped=skipped, lease=lease, ttl=self._ttl, options=options)
        self._require_primitives(plan.spec)
        return lambda function: _decorated(function, plan, lambda: self)

    def election(self, name: str, **options: Unpack[LockOptions]) -> AsyncElection:
        """The lock of that name as an election: its holder leads, and other clients can observe the leader.

        The options are those of `lock`. Observers see the `meta` of a leader, its host and its process.
        """
        from holdfast.elections.aio import AsyncElection

        made: AsyncElection = self._make(AsyncElection, "election", name, 1, exclusive=True, options=options)
        return made

    @overload
    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[None]: ...

    @overload
    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        skipped: D,
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[D]: ...

    @overload
    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[None]: ...

    @overload
    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        skipped: D,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[D]: ...

    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        skipped: object = UNSET,
        lease: str | None = None,
        **options: Unpack[LockOptions],
    ) -> Any:
        """A decorator: of all calls on all machines, one in each period runs the function; the others are skipped.

        The server selects the call before it runs: a run that fails or dies is not repeated before the next period. The
        run holds the lock of this name. If the run of the last period still holds it, the run of this period is
        skipped, at once or after `timeout`.

        Args:
            period: "30s", "15m", "1h", "1d", "1w", whole seconds or a timedelta. Periods begin at multiples of that in
                Unix time: those of a day at midnight UTC.
            name: The name of the job on all machines. May have fields over the parameters, as in `locked`.
            offset: Each period begins this long after such a multiple: "1d" with offset="3h" begins at 03:00 UTC.
            skipped: The result of a skipped call. Default: None.
            lease: The parameter that is filled in with the Lease; callers do not pass it. It is the first one, or the
                one after self. A keyword-only parameter works too, but type checkers refuse it.
            options: Those of `lock`.

        Raises:
            ConfigurationError: at decoration: an argument, a field or the kind of function is refused.
            Unsupported: this store has no registers.
        """
        plan = make_plan_once(period, offset, name, skipped=skipped, lease=lease, ttl=self._ttl, options=options)
        self._require_primitive(Primitive.ONCE_PER)
        self._require_primitives(plan.spec)
        return lambda function: _decorated(function, plan, lambda: self)

    async def inspect(self, name: str) -> LockInfo:
        """The holders and waiters of the lock, in order, according to the server.

        Reading creates no store; a store that does not exist has no locks.
        """
        return await self._engine.operators.inspect(names.check_name(name))

    async def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks with a holder or a waiter whose names begin with `prefix`.

        Redis and Redlock have no index of locks, so this searches all keys, with 5 % of the server's time at most: a
        minute or more for a million keys.
        """
        return await self._engine.operators.locks(names.check_prefix(prefix))

    async def break_lock(self, name: str, fence: int) -> bool:
        """End the lease with exactly this fence, of any holder; False if it does not exist.

        The holder learns this at its next renewal at the latest, and may work until then. The fence of the next lease
        is greater, so a resource that checks fences is safe.
        """
        return await self._engine.operators.break_lock(names.check_name(name), names.check_fence(fence))

    async def request_revoke(self, name: str, fence: int | None = None) -> bool:
        """Request the release of the lease with this fence, or of the present holders; False if there is none.

        A holder whose lock is `revocable` learns this at its next renewal, after a third of its ttl at most. Other
        holders do not poll for requests; `inspect` shows which do.

        Raises:
            Unsupported: this store has no registers for requests.
        """
        self._require_primitive(Primitive.REVOKE)
        checked = None if fence is None else names.check_fence(fence)
        return await self._engine.operators.request_revoke(names.check_name(name), checked)

    async def close(self) -> None:
        """Release all leases of this client and close its connections. Closing twice does nothing."""
        if self._closed:
            return
        engine = self._engine
        self._closed = True
        await engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _engine(self) -> Engine[AsyncLease]:
        engine = super()._engine
        self._runtime.check_loop()
        return engine

    def _start(self) -> Engine[AsyncLease]:
        self._runtime = runtime = AsyncioRuntime()
        engine = Engine(self._open(self._address, runtime), runtime, self._events, AsyncLease, self._required)
        release_at_exit(engine, functools.partial(_open_blocking, self._address))
        return engine


def _open_blocking(address: Address, other: Backend) -> Backend:
    """The store again, without the loop, which has ended."""
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    if isinstance(backend, Inherits):
        backend.inherit(other)
    return backend


def _decorated(
    function: Callable[P, Coroutine[Any, Any, T]], plan: Plan, client: Callable[[], AsyncClient]
) -> Callable[P, Coroutine[Any, Any, Any]]:
    spec_for, signature = spec_of(plan, function, is_async=True)
    timeout, skips, skipped, period = plan.timeout, plan.skips, plan.skipped, plan.period
    call = None if plan.lease is None else with_lease(function, plan.lease)

    @functools.wraps(function)
    async def locked_function(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = AsyncLock(client(), spec_for(args, kwargs), timeout)
        if period is not None and not await claim(lock._client._engine, lock.name, period):
            return skipped
        lease = None
        try:
            async with lock as lease:
                return await (function(*args, **kwargs) if call is None else call(lease, args, kwargs))
        except AcquireTimeout:
            if lease is not None or not skips:  # the body raised it
                raise
            return skipped

    if signature is not None:
        locked_function.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return locked_function
