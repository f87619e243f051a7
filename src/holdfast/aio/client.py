"""The client for asyncio. `threads/client.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from holdfast.aio.decorators import (
    AsyncLocked,
    AsyncLockedOrSkipped,
    AsyncLockedOrSkippedWithLease,
    AsyncLockedWithLease,
    decorated,
)
from holdfast.aio.lock_all import AsyncLockAll
from holdfast.aio.locks import AsyncLease, AsyncLock, AsyncRWLock, AsyncSemaphore
from holdfast.aio.once import AsyncOnce
from holdfast.base_client import BaseClient
from holdfast.core import names
from holdfast.core.decorators import make_plan_locked, make_plan_once
from holdfast.core.engine import Engine
from holdfast.core.locks import UNSET, LockOptions
from holdfast.core.names import Duration
from holdfast.core.once import OnceOptions, check_key, forget, make_once_plan
from holdfast.core.tickets import LockInfo
from holdfast.core.wait_graph import WaitGraph
from holdfast.primitives import Primitive
from holdfast.runtimes.aio import AsyncioRuntime, run_in_new_loop
from holdfast.runtimes.blocks import ForTasks
from holdfast.runtimes.exits import release_at_exit
from holdfast.runtimes.threads import ThreadRuntime
from holdfast.url import opener

if TYPE_CHECKING:
    from holdfast.aio.election import AsyncElection
    from holdfast.core.ports import Backend
    from holdfast.url import Address

D = TypeVar("D")


class AsyncClient(ForTasks, BaseClient[AsyncLease, AsyncLock, AsyncSemaphore, AsyncRWLock, AsyncLockAll]):
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

    Instead of the URL it takes a list of redis:// URLs (independent servers, of which a majority decides: redlock), or
    an object of a driver, for its address and credentials: a client of redis-py or a list of them, a connection or pool
    of psycopg, a connection of PyMySQL, an engine of SQLAlchemy, a KazooClient. The options after the question
    mark of a URL may also be given as keywords: `prefix="jobs:"`. `password` may be a function, which is called for
    each new connection (an AsyncClient also takes a coroutine function). With `require={"exclusion":
    "durable-authority", "order": "FIFO"}` a store with weaker `guarantees` is refused.

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
        self._for_plan(plan)
        return lambda function: decorated(function, plan, lambda: self)

    def election(self, name: str, **options: Unpack[LockOptions]) -> AsyncElection:
        """The lock of that name as an election: its holder leads, and other clients can observe the leader.

        The options are those of `lock`. Observers see the `meta` of a leader, its host and its process.
        """
        from holdfast.aio.election import AsyncElection

        return self._make(AsyncElection, "election", name, 1, exclusive=True, options=options)

    @overload
    def once_per(
        self,
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[None]: ...

    @overload
    def once_per(
        self,
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        skipped: D,
        lease: None = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkipped[D]: ...

    @overload
    def once_per(
        self,
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[None]: ...

    @overload
    def once_per(
        self,
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
        skipped: D,
        lease: str,
        **options: Unpack[LockOptions],
    ) -> AsyncLockedOrSkippedWithLease[D]: ...

    def once_per(
        self,
        period: Duration,
        *,
        name: str | Callable[..., str],
        offset: Duration = 0,
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
        self._for_plan(plan)
        return lambda function: decorated(function, plan, lambda: self)

    @overload
    def once(self, key: str, *, skipped: D, **options: Unpack[OnceOptions]) -> AsyncOnce[D]: ...

    @overload
    def once(self, key: str, **options: Unpack[OnceOptions]) -> AsyncOnce[None]: ...

    def once(self, key: str, **options: Any) -> AsyncOnce[Any]:
        """A key: of all calls with it, on all machines, one runs. Use `.run(function, …)`, or decorate the function.

        A record of the key is written before the body runs, and says after it that it is done. With after_crash "raise"
        or "skip", at most one run *starts* for a key until `retention` is over; with "retry", at most one *recorded
        completion*: effects of an interrupted run may have happened. As strong as the exclusion of the store.

        Args:
            key: Names the work: any text up to 498 characters. `run` uses it literally; the decorator fills in
                fields over the parameters, as in `locked`: "charge:{order_id}".
            retention: How long a completed run is remembered, from its completion. Default: "1d".
            result: Remember the result, which must be JSON of at most 64 KiB, and return it to later calls.
            check: Text (for the decorator, with fields) that calls with the same key agree on, such as "{amount}". A
                call with another one raises OnceMismatch.
            skipped: The value of a call that did not run, and that has no remembered result. Default: None.
            busy: While another call runs: "wait" waits for `timeout` seconds, then raises AcquireTimeout; "skip"
                returns `skipped`, at once or after `timeout`; "raise" raises AcquireTimeout at once.
            after_error: If the body raises, or is cancelled: "retry" forgets the run, and the next call runs;
                "remember" lets later calls raise OnceFailed. The error is raised in any case.
            after_crash: If the process of a run died, or its lease was lost: "raise" raises OnceInterrupted; "retry"
                runs again, with a greater fence; "skip" returns `skipped`.
            lease: The parameter that is filled in with the Lease of the run, as in `locked`.
            options: ttl, timeout, max_hold, stop_margin, meta, on_lost and group of `lock`. The default of max_hold is
                7 days. An interrupted run is remembered for max_hold, ttl and retention, from its start.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            Unsupported: this store keeps no records.
        """
        plan = make_once_plan(key, ttl=self._ttl, options=options)
        self._require_primitive(Primitive.ONCE)
        return AsyncOnce(lambda: self, plan)

    async def adopt(self, text: str, **options: Unpack[LockOptions]) -> AsyncLease:
        """Go on with a lease that another process has transferred: the text is what its `lease.transfer()` returned.

        The lock was taken all the time. The new lease has a greater fence and is renewed here. A text can be used once.

        Args:
            text: A secret: any client that has it can take the lease over.
            options: Those of `lock`, without timeout, owner, detect_deadlocks and min_hold. By default the lease
                keeps its ttl.

        Raises:
            ConfigurationError: the text is damaged, or is for another kind of store; or an option is refused.
            Unsupported: in this store a lease cannot move to another process.
            NotHeld: there is no such lease: it was adopted before, its time is over, or it is of another store.
            BackendError: no answer. If the lease was adopted, it is released in the background.
        """
        lock, transfer = self._prepare_adoption(text, options)
        return await self._engine.adopt(lock, transfer.nonce, transfer.min_hold_left)

    async def inspect(self, name: str) -> LockInfo:
        """The holders and waiters of the lock, in order, according to the server.

        Reading creates no store; a store that does not exist has no locks.
        """
        return await self._engine.operators.inspect(names.check_name(name))

    async def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks with a holder or a waiter whose names begin with `prefix`.

        Redlock, and Redis with method=setnx or getset, have no index of locks, so this searches all keys, with 5 % of
        the server's time at most: a minute or more for a million keys. The index of Redis does not have locks that only
        other programs hold; `inspect` shows these.
        """
        return await self._engine.operators.locks(names.check_prefix(prefix))

    async def wait_graph(self, prefix: str = "") -> WaitGraph:
        """Which threads and tasks wait for which, of the locks whose names begin with `prefix`, and their deadlocks.

        It is made from `locks`. A deadlock is reported only if a second reading of its locks shows it again.

        Raises:
            Unsupported: the waiters of this store leave no record.
        """
        self._require_primitive(Primitive.DETECT_DEADLOCKS)
        operators = self._engine.operators
        return await operators.wait_graph(await operators.locks(names.check_prefix(prefix)))

    async def break_lock(self, name: str, fence: int, *, force: bool = False) -> bool:
        """End the lease with exactly this fence, of any holder; False if it does not exist.

        The holder learns this at its next renewal at the latest, and may work until then. The fence of the next lease
        is greater, so a resource that checks fences is safe.

        Args:
            name: The name of the lock.
            fence: The fence of the lease, as `inspect` shows it.
            force: With `local_handover`, a client passes its lease on between its threads or tasks, with the fences
                from `fence` to `last_fence` of its TicketInfo. End it whichever of these is in use. Without `force`,
                the call waits until the client has reported which one it is.

        Raises:
            BackendUnavailable: the client has not reported that in time; try again, or use `force`.
        """
        name, fence = names.check_name(name), names.check_fence(fence)
        return await self._engine.operators.break_lock(name, fence, force=names.check_flag("force", force))

    async def forget(self, key: str, *, fence: int) -> bool:
        """Remove the record of `once` for this key, if its run has this fence; False if there is none.

        The next call runs the body again. A run that is still alive goes on, but cannot be recorded as done any more.
        """
        self._require_primitive(Primitive.ONCE)
        return await forget(self._engine, check_key(key), names.check_fence(fence))

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
        engine = self._current
        if engine is None or self._closed:
            engine = super()._engine
        self._runtime.check_loop()
        return engine

    def _start(self) -> Engine[AsyncLease]:
        self._runtime = runtime = AsyncioRuntime()
        address = self._address._replace(run_coroutine=runtime.run_from_thread)
        engine = Engine(self._open(address, runtime), runtime, self._events, AsyncLease, self._required)
        release_at_exit(engine, functools.partial(_open_blocking, self._address))
        return engine


def _open_blocking(address: Address) -> Backend:
    """The store again, without the loop, which has ended."""
    address = address._replace(run_coroutine=run_in_new_loop)
    return opener(address, "blocking")(address, ThreadRuntime())
