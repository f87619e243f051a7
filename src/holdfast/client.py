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
        """Give the lock back; from any thread.

        Raises:
            LockLost: the lease had ended or was taken before this; what was done since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer came. The keeper goes on trying, and this may be called again.
        """
        run_sync(self._engine.release(self))

    def renew(self) -> None:
        """Keep the lock for another `ttl` seconds, counted from now; only renew=False makes this necessary.

        Raises:
            LockLost: the lease had ended or was taken; stop touching the resource.
            BackendError: no answer came; the old deadline still stands.
        """
        run_sync(self._engine.renew(self))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost: True then; False when `timeout` seconds are over or it was released."""
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
            error.add_note(f"holdfast: {also}")  # the body's own error goes first

    def _interrupted_exit(self) -> None:
        self._engine.interrupted_exit(self)


class Lock(BaseLock[Lease]):
    """A named lock. Threads can share one object: what they hold is in the leases."""

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
        """Take the lock and return its Lease, or None when `timeout` seconds are over (0: do not wait, None: for ever).

        `blocking=False` is the same as timeout=0, as in threading; the two do not go together.

        Raises:
            ConfigurationError: an argument is refused; says which and why.
            WouldDeadlock: this thread or task holds it already and it is not reentrant.
            LimitConflict: it is in use elsewhere with another limit.
            BackendUnavailable, OutcomeUnknown: the server could not be asked; never raised for "busy".
        """
        if unknown:
            names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        return self._attempt(self._timeout_of(blocking, timeout)).lease

    def release(self) -> None:
        """Give back the lease that this thread or task took last through this object.

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
        """Somebody holds it now, says the server."""
        return bool(self._client.inspect(self.name).holders)

    def __enter__(self) -> Lease:
        block = entered_block(self)
        attempt = self._attempt(self._timeout)
        if attempt.lease is None:
            raise AcquireTimeout(lock=self.name, waited=attempt.waited, holder=attempt.holder)
        if block is not None:
            block.lease = attempt.lease
        return attempt.lease

    __exit__ = ExitOfBlock(ThreadBlock)

    def _last_entered(self) -> Lease:
        return self._last_of(self._caller())

    def _caller(self) -> Caller:
        return self._client._engine.runtime.caller()

    def _attempt(self, timeout: float | None) -> AcquireResult[Lease]:
        warn_inside_loop()
        return run_sync(self._client._engine.acquire(self, timeout))


class Semaphore(Lock):
    """A lock that `limit` may hold at once; one owner may take several permits."""


class RWLock(BaseRWLock[Lock]):
    """A lock that many may read or one may write. Served in order: a waiting writer keeps later readers out."""


class Locked(Protocol):
    """What `locked` returns: the function keeps its parameters and its result."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


class LockedOrSkipped(Protocol[D_co]):
    """What `locked` returns with busy="skip": a call may also return that it was skipped."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | D_co]: ...


class LockedWithLease(Protocol):
    """What `locked` returns with lease=: callers do not give the lease, which comes first or behind self."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T]: ...


class LockedOrSkippedWithLease(Protocol[D_co]):
    """Both: callers do not give the lease, and a call may also return that it was skipped."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], T], /) -> Callable[P, T | D_co]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S, Lease, P], T], /) -> Callable[Concatenate[S, P], T | D_co]: ...


class Client(BaseClient[Lease, Lock, Semaphore, RWLock, LockAll]):
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

    In place of the URL it takes a client object of redis-py's: same servers and credentials, on connections of its own;
    or a list of redis:// URLs: independent servers, a majority of which decides (redlock).
    What may stand behind the question mark of a URL may also be given as keywords: `prefix="jobs:"`.
    With `require={"exclusion": "durable-authority", "order": "FIFO"}` a store whose `guarantees` fall short is refused.

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
        """A decorator: each call of the function holds the lock that its arguments name, until it returns.

        Args:
            name: Text with fields over the parameters, as in str.format: "report:{day}", "order:{order.id}",
                "stock:{item[sku]}".
            name_of: In place of `name`: a function of the same arguments that returns the name.
            busy: "wait" waits for `timeout` seconds, then raises AcquireTimeout; "skip" returns without running the
                body, at once or after `timeout`; "raise" raises AcquireTimeout at once.
            skipped: What a call that was skipped returns. Default: None.
            lease: The parameter that the function gets its Lease by; callers do not give it. The first one or the one
                behind self; a keyword-only one works too, but type checkers refuse it.
            options: Those of `lock`.

        A method's name may use `{self.…}`. @staticmethod and @classmethod stand above this decorator. With
        reentrant=True the function may call itself with the same name, else that is WouldDeadlock (where it does not
        wait: busy). Client is for plain functions, AsyncClient for coroutine functions.

        Raises:
            TypeError: at decoration: `@client.locked` without a call.
            ConfigurationError: at decoration: an argument, a field or the kind of function is refused; at a call: the
                name comes out empty or too long.
        """
        plan = make_plan_locked(name, name_of, busy=busy, skipped=skipped, lease=lease, ttl=self._ttl, options=options)
        self._require_primitives(plan.spec)
        return lambda function: decorated(function, plan, lambda: self)

    def election(self, name: str, **options: Unpack[LockOptions]) -> Election:
        """The lock of that name as an election: its holder leads, and others can see who does.

        The options are those of `lock`; `meta` is what the others see of a leader besides its host and process.
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

        Which one that is, is settled on the server before it runs: a run that fails or dies half-way is not repeated
        before the next period. While it runs it holds the lock of this name; if the last period's run still has that,
        this period's is skipped, at once or after `timeout`.

        Args:
            period: "30s", "15m", "1h", "1d", "1w", whole seconds or a timedelta. Periods begin at multiples of that in
                Unix time: those of a day at midnight UTC.
            name: What all machines call the job; may have fields over the parameters, as in `locked`.
            offset: How long after such a multiple each period begins: "1d" with offset="3h" begins at 03:00 UTC.
            skipped: What a call that was skipped returns. Default: None.
            lease: The parameter that the function gets its Lease by; callers do not give it. The first one or the one
                behind self; a keyword-only one works too, but type checkers refuse it.
            options: Those of `lock`.

        Raises:
            ConfigurationError: at decoration: an argument, a field or the kind of function is refused.
            Unsupported: this store keeps no marks.
        """
        plan = make_plan_once(period, offset, name, skipped=skipped, lease=lease, ttl=self._ttl, options=options)
        self._require_primitive(Primitive.ONCE_PER)
        self._require_primitives(plan.spec)
        return lambda function: decorated(function, plan, lambda: self)

    def inspect(self, name: str) -> LockInfo:
        """Who holds the lock and who waits for it, in order, says the server.

        Reading creates no store: one that does not exist has no locks.
        """
        return run_sync(self._engine.operators.inspect(names.check_name(name)))

    def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks that somebody holds or waits for and whose names begin with `prefix`.

        Redis and Redlock have no index of their locks, so all keys are searched, at 5 % of the server's time at most: a
        minute or more for a million keys.
        """
        return run_sync(self._engine.operators.locks(names.check_prefix(prefix)))

    def break_lock(self, name: str, fence: int) -> bool:
        """End the lease that has exactly this fence, whoever holds it; False if there is none any more.

        The holder learns of it at its next renewal at the latest, and may work on until then: the fence of the next
        lease is greater, so a resource that checks fences is safe.
        """
        return run_sync(self._engine.operators.break_lock(names.check_name(name), names.check_fence(fence)))

    def request_revoke(self, name: str, fence: int | None = None) -> bool:
        """Ask the holder of a lock to let go: the lease with this fence, or any that holds it now; False if none does.

        A holder whose lock is `revocable` learns of it at its next renewal, after a third of its ttl at most. The
        others do not listen; `inspect` shows which do.

        Raises:
            Unsupported: this store cannot carry requests.
        """
        self._require_primitive(Primitive.REVOKE)
        checked = None if fence is None else names.check_fence(fence)
        return run_sync(self._engine.operators.request_revoke(names.check_name(name), checked))

    def close(self) -> None:
        """Release what this client holds and let go of the store. Closing twice does nothing."""
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
    """What `locked` and `once_per` make of a function."""
    terms_for, signature = spec_of(plan, function, is_async=False)
    timeout, skips, skipped, period = plan.timeout, plan.skips, plan.skipped, plan.period
    call = None if plan.lease is None else with_lease(function, plan.lease)

    @functools.wraps(function)
    def locked_function(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = Lock(client(), terms_for(args, kwargs), timeout)
        if period is not None and not run_sync(claim(lock._client._engine, lock.name, period)):
            return skipped
        lease, depth = None, 0
        try:
            with lock as lease:
                depth = lease._depth
                result = function(*args, **kwargs) if call is None else call(lease, args, kwargs)
                if isinstance(result, CoroutineType):  # of a function that hides what it is
                    result.close()
                    refuse_coroutine(function)
                return result
        except AcquireTimeout:
            if lease is not None or not skips:  # the body's own goes out as it is
                raise
            return skipped
        except BaseException:
            # A KeyboardInterrupt just before the first instruction of __exit__. Nobody else has the lock to release it.
            if lease is not None and lease._phase is Phase.HELD and lease._depth == depth:
                lease._engine.interrupted_exit(lease)
            raise

    if signature is not None:
        locked_function.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return locked_function
