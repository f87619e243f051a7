"""Locks and leases for asyncio. `threads/locks.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Never,
    TypeVar,
)

from holdfast.base_client import BaseRWLock, check_renewal, check_transfer, transfer_text
from holdfast.core import names
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, BaseLock, Unset
from holdfast.core.names import Duration
from holdfast.errors import AcquireTimeout
from holdfast.runtimes.aio import AsyncBlocks, AsyncioRuntime, calling_task
from holdfast.runtimes.blocks import ExitOfBlock, ForTasks, TaskBlock, entered_block

if TYPE_CHECKING:
    from asyncio import Task

    from holdfast.aio.client import AsyncClient
    from holdfast.aio.lock_all import AsyncLeaseAll

L = TypeVar("L", "AsyncLease", "AsyncLeaseAll")


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

    async def renew(self, *, ttl: Duration | None = None) -> None:
        """Keep the lock for another `ttl` seconds from now. Without a ttl, only needed with renew=False.

        Args:
            ttl: The new ttl of this lease, from now on and for later renewals. A lease that was acquired again by
                re-entry is one lease, and has one ttl.

        Raises:
            ConfigurationError: this ttl is refused; the message has the reason.
            Unsupported: this store cannot change the ttl of a lease.
            LockLost: the lease had ended or was broken; stop using the resource.
            BackendError: no answer; the old deadline stays. With a ttl, the earlier of the old one and the new one
                counts, and later renewals use the new ttl.
        """
        self._check_loop()
        await self._engine.renew(self, ttl=check_renewal((self,), ttl))

    async def transfer(self, *, within: Duration = 30.0) -> str:
        """End the lease here, and return a secret text with which another process can go on: `client.adopt(text)`.

        Nobody renews the lease in between. The lock stays taken for `within` seconds, also if this process ends. The
        adopted lease has a greater fence. A `with` block of this lease ends without a release.

        Args:
            within: The time in which the text can be used, once.

        Raises:
            ConfigurationError: only a lease that excludes all others can be transferred: no reader, permit or owner.
            Unsupported: in this store a lease cannot move to another process.
            UsageError: it was acquired again by re-entry; release the inner ones first.
            LockLost, NotHeld: it is not held.
            BackendError: no answer. The lease is over as after `release()`, no text can adopt it, and the keeper
                releases the lock.
        """
        seconds = check_transfer(self, within)
        self._check_loop()
        nonce, min_hold_left = await self._engine.transfer(self, seconds)
        return transfer_text(self, nonce, min_hold_left)

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss of the lease: True at a loss, False after `timeout` seconds or a release."""
        self._check_loop()
        return await self._engine.wait_lost(self, names.check_timeout(timeout))

    def _check_loop(self) -> None:
        runtime = self._engine.runtime
        if isinstance(runtime, AsyncioRuntime):
            runtime.check_loop()

    def _release_at_end(self) -> Coroutine[Any, Any, None]:
        return self._engine.release(self, after_body=True)

    @property
    def _cancels_bodies(self) -> bool:
        return self._spec.on_lost != "event"


class TaskLock(ForTasks, BaseLock[L]):
    """`async with` on a lock: the part that AsyncLock and AsyncLockAll share."""

    def __aenter__(self) -> Coroutine[Any, Any, L]:
        return self._enter_block(entered_block(self), calling_task())

    __aexit__ = ExitOfBlock(TaskBlock)

    async def _enter_block(self, block: TaskBlock | None, task: Task[Any] | None) -> L:
        result = await self._try(self._timeout, task)
        if result.lease is None:
            raise AcquireTimeout(lock=self.name, waited=result.waited, holder=result.holder)
        return result.lease._enter_body(block, task)

    async def _acquire(self, timeout: float | None, task: Task[Any] | None) -> L | None:
        return (await self._try(timeout, task)).lease

    def _try(self, timeout: float | None, task: Task[Any] | None) -> Coroutine[Any, Any, AcquireResult[L]]:
        raise NotImplementedError  # in each subclass


class AsyncLock(TaskLock[AsyncLease]):
    """A named lock. Tasks can share one object, because the state is in the leases."""

    def __init__(self, client: AsyncClient, spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec, timeout)
        self._client: AsyncClient = client

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> Coroutine[Any, Any, AsyncLease | None]:
        """Acquire the lock and return its Lease, or None after `timeout` seconds (0: do not wait, None: wait forever).

        `blocking=False` is the same as timeout=0, as in threading. Give only one of the two.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            WouldDeadlock: this thread or task holds it, it is not reentrant, and there is no timeout.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server gave no answer; never raised for a busy lock.
            AccessDenied: this user lacks a permission; the message names what to grant.
        """
        if unknown:
            names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        seconds = self._timeout
        if timeout is not UNSET or blocking is not True:
            seconds = self._timeout_of(blocking, timeout)
        # Here, not in the coroutine: the lease belongs to the task that calls this, also if the coroutine runs in a
        # task of its own, as in `asyncio.gather`, and up to Python 3.11 in `asyncio.wait_for`.
        return self._acquire(seconds, calling_task())

    async def release(self) -> None:
        """Release the lease that this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        await self._last_of(self._caller()).release()

    async def locked(self) -> bool:
        """Whether a client holds it now, according to the server."""
        return bool((await self._client.inspect(self.name)).holders)

    def _try(self, timeout: float | None, task: Task[Any] | None) -> Coroutine[Any, Any, AcquireResult[AsyncLease]]:
        caller = None if task is None else AsyncioRuntime.caller_of(task)
        return self._client._engine.acquire(self, timeout, caller)


class AsyncSemaphore(AsyncLock):
    """A lock that `limit` callers may hold at once. One thread or task may acquire several permits."""

    async def locked(self) -> bool:
        """Whether no permit is left, according to the server."""
        return len((await self._client.inspect(self.name)).holders) >= (self._spec.limit or 1)


class AsyncRWLock(BaseRWLock[AsyncLock]):
    """A lock for many readers or one writer, served in order: a waiting writer blocks later readers."""
