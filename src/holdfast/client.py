"""holdfast for threads. `aio.py` is its twin for asyncio: the same names and words, awaited; a test keeps it so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from types import CoroutineType, TracebackType
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
from holdfast.core.decorators import Plan, make_plan_locked, make_plan_once, refuse_coroutine, spec_of, with_lease
from holdfast.core.engine import AcquireResult, Engine
from holdfast.core.leases import BaseLease, LockSpec, Phase
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, BaseLock, LockOptions, Unset
from holdfast.core.periods import claim
from holdfast.core.tickets import LockInfo
from holdfast.errors import AcquireTimeout, HoldfastError
from holdfast.lease_groups.threads import LockAll
from holdfast.primitives import Primitive
from holdfast.runtimes.blocks import ExitOfBlock, ThreadBlock, entered_block
from holdfast.runtimes.exits import release_at_exit
from holdfast.runtimes.threads import ThreadRuntime, run_sync, warn_inside_loop

if TYPE_CHECKING:
    from holdfast.core.ports import Caller
    from holdfast.elections.threads import Election

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)


class Lease(BaseLease):
    """One successful acquisition, until it is released or lost. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ()

    def release(self) -> None:
        """Release the lock, from any thread.

        Raises:
            LockLost: the lease had ended or was broken before this. Work since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer. The keeper repeats the release, and this may be called again.
        """
        run_sync(self._engine.release(self))

    def renew(self) -> None:
        """Keep the lock for another `ttl` seconds from now. Only needed with renew=False.

        Raises:
            LockLost: the lease had ended or was broken; stop using the resource.
            BackendError: no answer; the old deadline stays.
        """
        run_sync(self._engine.renew(self))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait for the loss of the lease: True at a loss, False after `timeout` seconds or a release."""
        return run_sync(self._engine.wait_lost(self, names.check_timeout(timeout)))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._exit_block(error)
        except HoldfastError:
            raise
        except BaseException:
            self._interrupted_exit()
            raise

    def _exit_block(self, error: BaseException | None) -> None:
        try:
            run_sync(self._engine.release_after_body(self))
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the error of the body is raised

    def _interrupted_exit(self) -> None:
        self._engine.interrupted_exit(self)


class Lock(BaseLock[Lease]):
    """A named lock. Threads can share one object, because the state is in the leases."""

    def __init__(self, client: Client, spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec, timeout)
        self._client = client

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: float | Unset | None = UNSET,
        **unknown: Never,
    ) -> Lease | None:
        """Acquire the lock and return its Lease, or None after `timeout` seconds (0: do not wait, None: wait forever).

        `blocking=False` is the same as timeout=0, as in threading. Give only one of the two.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            WouldDeadlock: this thread or task holds it, and it is not reentrant.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server gave no answer; never raised for a busy lock.
        """
        if unknown:
            names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        return self._try(self._timeout_of(blocking, timeout)).lease

    def release(self) -> None:
        """Release the lease that this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        self._last_of(self._caller()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds it, by the local clock."""
        return self._is_held_by(self._caller())

    def locked(self) -> bool:
        """Whether a client holds it now, according to the server."""
        return bool(self._client.inspect(self.name).holders)

    def __enter__(self) -> Lease:
        block = entered_block(self)
        result = self._try(self._timeout)
        if result.lease is None:
            raise AcquireTimeout(lock=self.name, waited=result.waited, holder=result.holder)
        if block is not None:
            block.lease = result.lease
        return result.lease

    __exit__ = ExitOfBlock(ThreadBlock)

    def _last_entered(self) -> Lease:
        return self._last_of(self._caller())

    def _caller(self) -> Caller:
        return self._client._engine.runtime.caller()

    def _try(self, timeout: float | None) -> AcquireResult[Lease]:
        warn_inside_loop()
        return run_sync(self._client._engine.acquire(self, timeout))


class Semaphore(Lock):
    """A lock that `limit` callers may hold at once. One thread or task may acquire several permits."""


class RWLock(BaseRWLock[Lock]):
    """A lock for many readers or one writer, served in order: a waiting writer blocks later readers."""


class Locked(Protocol):
    """The decorator that `locked` returns: the function keeps its parameters and its result."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


class LockedOrSkipped(Protocol[D_co]):
    """The decorator that `locked` returns with busy="skip": a call may also return `skipped`."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | D_co]: ...


class LockedWithLease(Protocol):
    """The decorator that `locked` returns with lease=: the first parameter, or the one after self, is filled in."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T]: ...


class LockedOrSkippedWithLease(Protocol[D_co]):
    """The decorator with both: the lease is filled in, and a call may also return `skipped`."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T | D_co]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T | D_co]: ...


class Client(BaseClient[Lease, Lock, Semaphore, RWLock, LockAll]):
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

    Instead of the URL it takes a client object of redis-py (same servers and credentials, separate connections), or a
    list of redis:// URLs (independent servers, of which a majority decides: redlock). The options after the question
    mark of a URL may also be given as keywords: `prefix="jobs:"`. With `require={"exclusion": "durable-authority",
    "order": "FIFO"}` a store with weaker `guarantees` is refused.

    >>> import holdfast
    >>> client = holdfast.Client("memory://")
    >>> with client.lock("report", ttl=10, timeout=5) as lease:
    ...     lease.check()
    ...     client.lock("report").acquire(timeout=0) is None
    True
    >>> client.close()
    """

    _runtime_name = "blocking"
    _lock_type = Lock
    _semaphore_type = Semaphore
    _rwlock_type = RWLock
    _lock_all_type = LockAll

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["wait", "raise"] = "wait",
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> Locked: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> LockedOrSkipped[None]: ...

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
    ) -> LockedOrSkipped[D]: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["wait", "raise"] = "wait",
        lease: str,
        **options: Unpack[LockOptions],
    ) -> LockedWithLease: ...

    @overload
    def locked(
        self,
        name: str | None = None,
        *,
        name_of: Callable[..., str] | None = None,
        busy: Literal["skip"],
        lease: str,
        **options: Unpack[LockOptions],
    ) -> LockedOrSkippedWithLease[None]: ...

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
    ) -> LockedOrSkippedWithLease[D]: ...

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
        return lambda function: decorated(function, plan, lambda: self)

    def election(self, name: str, **options: Unpack[LockOptions]) -> Election:
        """The lock of that name as an election: its holder leads, and other clients can observe the leader.

        The options are those of `lock`. Observers see the `meta` of a leader, its host and its process.
        """
        from holdfast.elections.threads import Election

        made: Election = self._make(Election, "election", name, 1, exclusive=True, options=options)
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
    ) -> LockedOrSkipped[None]: ...

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
    ) -> LockedOrSkipped[D]: ...

    @overload
    def once_per(
        self,
        period: str | float | timedelta,
        *,
        name: str | Callable[..., str],
        offset: str | float | timedelta = 0,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> LockedOrSkippedWithLease[None]: ...

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
    ) -> LockedOrSkippedWithLease[D]: ...

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
        return lambda function: decorated(function, plan, lambda: self)

    def inspect(self, name: str) -> LockInfo:
        """The holders and waiters of the lock, in order, according to the server.

        Reading creates no store; a store that does not exist has no locks.
        """
        return run_sync(self._engine.operators.inspect(names.check_name(name)))

    def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks with a holder or a waiter whose names begin with `prefix`.

        Redis and Redlock have no index of locks, so this searches all keys, with 5 % of the server's time at most: a
        minute or more for a million keys.
        """
        return run_sync(self._engine.operators.locks(names.check_prefix(prefix)))

    def break_lock(self, name: str, fence: int) -> bool:
        """End the lease with exactly this fence, of any holder; False if it does not exist.

        The holder learns this at its next renewal at the latest, and may work until then. The fence of the next lease
        is greater, so a resource that checks fences is safe.
        """
        return run_sync(self._engine.operators.break_lock(names.check_name(name), names.check_fence(fence)))

    def request_revoke(self, name: str, fence: int | None = None) -> bool:
        """Request the release of the lease with this fence, or of the present holders; False if there is none.

        A holder whose lock is `revocable` learns this at its next renewal, after a third of its ttl at most. Other
        holders do not poll for requests; `inspect` shows which do.

        Raises:
            Unsupported: this store has no registers for requests.
        """
        self._require_primitive(Primitive.REVOKE)
        checked = None if fence is None else names.check_fence(fence)
        return run_sync(self._engine.operators.request_revoke(names.check_name(name), checked))

    def close(self) -> None:
        """Release all leases of this client and close its connections. Closing twice does nothing."""
        if self._closed:
            return
        engine = self._engine
        self._closed = True
        run_sync(engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> Engine[Lease]:
        runtime = ThreadRuntime()
        engine = Engine(self._open(self._address, runtime), runtime, self._events, Lease, self._required)
        release_at_exit(engine)
        return engine


def decorated(function: Callable[P, T], plan: Plan, client: Callable[[], Client]) -> Callable[P, Any]:
    """The function that `locked` and `once_per` return for a function."""
    spec_for, signature = spec_of(plan, function, is_async=False)
    timeout, skips, skipped, period = plan.timeout, plan.skips, plan.skipped, plan.period
    call = None if plan.lease is None else with_lease(function, plan.lease)

    @functools.wraps(function)
    def locked_function(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = Lock(client(), spec_for(args, kwargs), timeout)
        if period is not None and not run_sync(claim(lock._client._engine, lock.name, period)):
            return skipped
        lease, depth = None, 0
        try:
            with lock as lease:
                depth = lease._depth
                result = function(*args, **kwargs) if call is None else call(lease, args, kwargs)
                if isinstance(result, CoroutineType):  # of a function that is no coroutine function
                    result.close()
                    refuse_coroutine(function)
                return result
        except AcquireTimeout:
            if lease is not None or not skips:  # the body raised it
                raise
            return skipped
        except BaseException:
            # A KeyboardInterrupt just before the first instruction of __exit__. No other code can release the lease.
            if lease is not None and lease._phase is Phase.HELD and lease._depth == depth:
                lease._engine.interrupted_exit(lease)
            raise

    if signature is not None:
        locked_function.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return locked_function
