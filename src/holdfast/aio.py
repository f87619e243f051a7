"""holdfast for asyncio: `client.py`, awaited. The same names and words; a test keeps them alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack

from holdfast.client import DEFAULT_TTL
from holdfast.core import names
from holdfast.core.engine import Attempt, Engine
from holdfast.core.events import Event, Events
from holdfast.core.handles import UNSET, Handle, LockOptions, Unset, make_terms
from holdfast.core.holds import Hold, Terms
from holdfast.core.tickets import LockInfo
from holdfast.errors import AcquireTimeout, HoldfastError, UsageError
from holdfast.guarantees import Guarantees
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioRuntime, current_task
from holdfast.url import Address, default_url, opener, parse


class AsyncLease(Hold):
    """One successful acquisition, until it is released or lost. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ("_body",)

    _body: _Body | None

    async def release(self) -> None:
        """Give the lock back; from any task.

        Raises:
            LockLost: the lease had ended or was taken before this; what was done since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer came. The keeper goes on trying, and this may be called again.
        """
        await self._engine.release(self)

    async def renew(self) -> None:
        """Keep the lock for another `ttl` seconds, counted from now; only renew=False makes this necessary.

        Raises:
            LockLost: the lease had ended or was taken; stop touching the resource.
            BackendError: no answer came; the old deadline still stands.
        """
        await self._engine.renew(self)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost: True then; False when `timeout` seconds are over or it was released."""
        return await self._engine.wait_lost(self, names.check_timeout(timeout))

    async def __aenter__(self) -> Self:
        return self._enter_body()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_by_us = self._leave_body(error)
        try:
            await self._engine.leave_body(self)
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the body's own error goes first
        if ended_by_us:
            raise self._loss() from error

    def _enter_body(self) -> Self:
        """From here on a loss cancels the body; re-entered, the outermost body."""
        if self._hook is None and self._terms.on_lost != "event":
            self._body = _Body()
            self._hook = self._body.tell_lost
        return self

    def _leave_body(self, error: BaseException | None) -> bool:
        """Whether what ends the body is the cancellation that we sent it."""
        if self._hook is None or self._depth > 1:
            return False
        body, self._body, self._hook = self._body, None, None
        return body is not None and body.leave(error)


class AsyncLock(Handle[AsyncLease]):
    """A named lock. Tasks can share one object: what they hold is in the leases."""

    def __init__(self, client: AsyncClient, terms: Terms, timeout: float | None) -> None:
        super().__init__(terms, timeout)
        self._client = client

    async def acquire(self, *, timeout: float | Unset | None = UNSET, **unknown: object) -> AsyncLease | None:
        """Take the lock and return its Lease, or None when `timeout` seconds are over (0: do not wait, None: for ever).

        Raises:
            WouldDeadlock: this thread or task holds it already and it is not reentrant.
            LimitConflict: it is in use elsewhere with another limit.
            BackendUnavailable, OutcomeUnknown: the server could not be asked; never raised for "busy".
        """
        names.refuse_unknown("acquire", unknown)
        return (await self._attempt(self.waits(timeout))).lease

    async def release(self) -> None:
        """Give back the lease that this thread or task took last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        await self.last_of(self._client._engine.runtime.owner()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds it, by the local clock."""
        return self.is_held_by(self._client._engine.runtime.owner())

    async def locked(self) -> bool:
        """Somebody holds it now, says the server."""
        return bool((await self._client.inspect(self.name)).holders)

    async def __aenter__(self) -> AsyncLease:
        attempt = await self._attempt(self._timeout)
        if attempt.lease is not None:
            return attempt.lease._enter_body()
        raise AcquireTimeout(lock=self.name, waited=attempt.waited, holder=attempt.holder)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.last_of(self._client._engine.runtime.owner()).__aexit__(kind, error, trace)

    async def _attempt(self, timeout: float | None) -> Attempt[AsyncLease]:
        return await self._client._engine.acquire(self, timeout)


class AsyncSemaphore(AsyncLock):
    """A lock that `limit` may hold at once; one owner may take several permits."""


class AsyncRWLock:
    """A lock that many may read or one may write. Served in order: a waiting writer keeps later readers out."""

    def __init__(self, read: AsyncLock, write: AsyncLock) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._read.name

    def read(self) -> AsyncLock:
        """The lock as a reader takes it; the same object each time."""
        return self._read

    def write(self) -> AsyncLock:
        """The lock as a writer takes it; the same object each time."""
        return self._write


class AsyncClient:
    """Locks on one store: `url`, or $HOLDFAST_URL, or a file in the user's state folder.

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

    def __init__(self, url: str | None = None, *, ttl: float = DEFAULT_TTL) -> None:
        self._url = default_url() if url is None else url
        self._ttl = names.check_ttl(ttl)
        self._address: Address = parse(self._url)
        self._open = opener(self._address, "aio")
        self._events = Events()
        self._closed = False
        self._current: Engine[AsyncLease] | None = self._start()
        system.on_fork(self)

    def lock(self, name: str, **options: Unpack[LockOptions]) -> AsyncLock:
        """A lock that one may hold at a time.

        Args:
            name: What its users agree on: any text up to 512 characters, exact and case-sensitive.
            ttl: How long a lease lives without renewal, in seconds. Default: the client's, 30.
            timeout: How long `with` and `acquire()` wait, in seconds; None waits for ever, 0 does not wait.
            reentrant: Let the thread or task that holds it take it again: the same lease, counted.
            renew: Renew the lease by itself every third of its ttl, until it is released. Default: True.
            max_hold: Lose the lease after this many seconds, however often it was renewed.
            stop_margin: Tell of a loss this many seconds before the deadline, so that work can end in time.
            meta: Anything JSON can write; operators see it with the holder.
            on_lost: A function to call with the lease when it is lost. In asyncio a loss also cancels the body of
                `async with`, which then raises LockLost; "event" leaves the body alone.

        Raises:
            ConfigurationError: an argument is refused; says which and why.
        """
        return AsyncLock(self, *make_terms("lock", name, 1, exclusive=True, ttl=self._ttl, options=options))

    def rwlock(self, name: str, **options: Unpack[LockOptions]) -> AsyncRWLock:
        """A lock that many may read or one may write; the options are those of `lock`."""
        read = make_terms("rwlock", name, None, exclusive=False, ttl=self._ttl, options=options)
        write = make_terms("rwlock", name, 1, exclusive=True, ttl=self._ttl, options=options)
        return AsyncRWLock(AsyncLock(self, *read), AsyncLock(self, *write))

    def semaphore(self, name: str, limit: int, **options: Unpack[LockOptions]) -> AsyncSemaphore:
        """A lock that `limit` may hold at a time; its users must agree on that. The options are those of `lock`."""
        checked = names.check_limit(limit)
        return AsyncSemaphore(
            self, *make_terms("semaphore", name, checked, exclusive=False, ttl=self._ttl, options=options)
        )

    async def inspect(self, name: str) -> LockInfo:
        """Who holds the lock and who waits for it, in order, says the server."""
        return await self._engine.inspect(names.check_name(name))

    async def locks(self, prefix: str = "") -> list[LockInfo]:
        """All locks that somebody holds or waits for and whose names begin with `prefix`."""
        return await self._engine.locks(names.check_prefix(prefix))

    async def break_lock(self, name: str, fence: int) -> bool:
        """End the lease that has exactly this fence, whoever holds it; False if there is none any more.

        The holder learns of it at its next renewal at the latest, and may work on until then: the fence of the next
        lease is greater, so a resource that checks fences is safe.
        """
        return await self._engine.break_lock(names.check_name(name), names.check_fence(fence))

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Have every event of this client's leases passed to `subscriber`; the returned function ends that."""
        return self._events.subscribe(subscriber)

    @property
    def guarantees(self) -> Guarantees:
        """What this store promises, as data."""
        if self._current is None:
            self._current = self._start()
        return self._current.backend.guarantees

    @property
    def url(self) -> str:
        """The store's URL, without its password."""
        return self._address.redacted

    async def close(self) -> None:
        """Release what this client holds and let go of the store. Closing twice does nothing."""
        if self._closed:
            return
        engine = self._engine
        self._closed = True
        await engine.close()

    def before_fork(self) -> None:
        """Nothing to prepare here. Called by the runtime."""

    def after_fork_in_parent(self) -> None:
        """Nothing changes here. Called by the runtime."""

    def after_fork(self) -> None:
        """In a forked child: nothing of the parent's is ours. Called by the runtime."""
        if self._current is not None:
            self._current.abandon("this process is a fork: the lease belongs to its parent")
            self._current = None

    @property
    def _engine(self) -> Engine[AsyncLease]:
        if self._closed:
            raise UsageError("this client is closed")
        if self._current is None:
            self._current = self._start()
        self._runtime.check_loop()
        return self._current

    def _start(self) -> Engine[AsyncLease]:
        self._runtime = AsyncioRuntime()
        return Engine(self._open(self._address, self._runtime), self._runtime, self._events, AsyncLease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_make_async_client, (self._url, self._ttl))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


class _Body:
    """The body of an `async with`, in its task: cancelled at a loss, by the counting that asyncio.timeout uses."""

    def __init__(self) -> None:
        self._task = current_task()
        self._cancelling = self._task.cancelling()
        self._inside = True
        self._cancelled = False

    def tell_lost(self) -> None:
        # Never at once: found out by the task itself (lease.check()), a cancellation would stay behind and hit
        # whatever the task awaits after its body.
        self._task.get_loop().call_soon(self._cancel)

    def leave(self, error: BaseException | None) -> bool:
        self._inside = False
        if not self._cancelled:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

    def _cancel(self) -> None:
        if self._inside:
            self._cancelled = True
            self._task.cancel()


def _make_async_client(url: str, ttl: float) -> AsyncClient:
    return AsyncClient(url, ttl=ttl)
