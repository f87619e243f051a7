"""Several locks as one, for asyncio. `threads/lock_all.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Coroutine
from typing import Any, Never

from holdfast.aio.locks import TaskLock
from holdfast.base_client import BaseLockAll, check_renewal
from holdfast.core import names
from holdfast.core.lease_groups import LeaseGroup, release_after_body, release_all, renew_all
from holdfast.core.leases import AcquireResult
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, Unset
from holdfast.core.names import Duration
from holdfast.runtimes.aio import AsyncBlocks, AsyncioRuntime, calling_task


class AsyncLeaseAll(AsyncBlocks, LeaseGroup):
    """The leases of several locks, as one. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ("_bodies",)

    async def release(self) -> None:
        """Release all locks, in one request for each store, from any task.

        Raises:
            LockLost: a lease had ended or was broken before this. Work since then was not protected.
            NotHeld: they were released before.
            BackendError: no answer. The keeper repeats the release, and this may be called again.
        """
        await release_all(self)

    async def renew(self, *, ttl: Duration | None = None) -> None:
        """Keep all locks for another `ttl` seconds from now. Without a ttl, only needed with renew=False.

        Args:
            ttl: The new ttl of all these leases, from now on and for later renewals.

        Raises:
            ConfigurationError: this ttl is refused; the message has the reason. No lease has changed.
            Unsupported: one of the stores cannot change the ttl of a lease. No lease has changed.
            LockLost: a lease had ended or was broken; stop using the resources.
            BackendError: no answer for at least one; its old deadline stays. With a ttl, the earlier of the old one
                and the new one counts, and later renewals use the new ttl.
        """
        await renew_all(self, check_renewal(self._leases, ttl))

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss of the leases: True at a loss, False after `timeout` seconds or a release."""
        first = self._leases[0]
        return await first._engine.wait_lost(first, names.check_timeout(timeout))

    async def _release_at_end(self) -> None:
        await release_after_body(self)

    @property
    def _cancels_bodies(self) -> bool:
        return self._on_lost != "event"


class AsyncLockAll(TaskLock[AsyncLeaseAll], BaseLockAll[AsyncLeaseAll]):
    """Several named locks, acquired as one. Tasks can share one object, because the state is in the leases."""

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> Coroutine[Any, Any, AsyncLeaseAll | None]:
        """Acquire all locks and return their leases as one, or None after `timeout` seconds (0: do not wait).

        `blocking=False` is the same as timeout=0, as in threading. Give only one of the two.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            WouldDeadlock: this thread or task holds one of them.
            BackendUnavailable, OutcomeUnknown: a server gave no answer; never raised for a busy lock.
        """
        names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        return self._acquire(self._timeout_of(blocking, timeout), calling_task())

    async def release(self) -> None:
        """Release what this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `LeaseAll.release`.
        """
        await self._last_of(self._caller()).release()

    async def _try(self, timeout: float | None, task: Task[Any] | None) -> AcquireResult[AsyncLeaseAll]:
        caller = self._caller() if task is None else AsyncioRuntime.caller_of(task)
        return await self._acquire_all(AsyncLeaseAll, timeout, caller)
