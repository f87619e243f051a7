"""Several locks as one, for asyncio: `threads.py`, awaited. The same names and words; a test keeps them alike."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Never

from holdfast.core import names
from holdfast.core.acquire_all import Part, acquire_all
from holdfast.core.lease_groups import LeaseGroup, release_after_body, release_all, renew_all, shown
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, BaseLock, Unset
from holdfast.errors import AcquireTimeout
from holdfast.runtimes.aio import AsyncBlocks, AsyncioRuntime, calling_task
from holdfast.runtimes.blocks import ExitOfBlock, TaskBlock, entered_block

if TYPE_CHECKING:
    from asyncio import Task

    from holdfast.aio import AsyncLease, AsyncLock
    from holdfast.core.engine import AcquireResult
    from holdfast.core.leases import LockSpec
    from holdfast.core.ports import Caller


class AsyncLeaseAll(AsyncBlocks, LeaseGroup):
    """The leases of several locks, as one. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ("_bodies",)

    async def release(self) -> None:
        """Give all locks back, in one step for each store; from any task.

        Raises:
            LockLost: a lease had ended or was taken before this; what was done since then was not protected.
            NotHeld: they were released before.
            BackendError: no answer came. The keeper goes on trying, and this may be called again.
        """
        await release_all(self)

    async def renew(self) -> None:
        """Keep all locks for another `ttl` seconds, counted from now; only renew=False makes this necessary.

        Raises:
            LockLost: a lease had ended or was taken; stop touching the resources.
            BackendError: no answer came; the old deadlines still stand.
        """
        await renew_all(self)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until they are lost: True then; False when `timeout` seconds are over or they were released."""
        first = self._leases[0]
        return await first._engine.wait_lost(first, names.check_timeout(timeout))

    async def _release_at_end(self) -> None:
        await release_after_body(self)

    @property
    def _cancels_bodies(self) -> bool:
        return self._on_lost != "event"


class AsyncLockAll(BaseLock[AsyncLeaseAll]):
    """Several named locks, taken as one. Tasks can share one object: what they hold is in the leases."""

    def __init__(self, locks: Sequence[AsyncLock], spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec._replace(name=shown([lock.name for lock in locks])), timeout)
        self._locks = tuple(locks)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the locks, in the order in which they are taken."""
        return tuple(lock.name for lock in self._locks)

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: float | Unset | None = UNSET,
        **unknown: Never,
    ) -> Coroutine[Any, Any, AsyncLeaseAll | None]:
        """Take all locks and return their leases as one, or None when `timeout` seconds are over (0: do not wait).

        `blocking=False` is the same as timeout=0, as in threading; the two do not go together.

        Raises:
            ConfigurationError: an argument is refused; says which and why.
            WouldDeadlock: this thread or task holds one of them already.
            BackendUnavailable, OutcomeUnknown: a server could not be asked; never raised for "busy".
        """
        names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        return self._acquire(self._timeout_of(blocking, timeout), calling_task())

    async def release(self) -> None:
        """Give back what this thread or task took last through this object.

        Raises:
            NotHeld: there is nothing.
            LockLost, BackendError: see `LeaseAll.release`.
        """
        await self._last_of(self._caller()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds them, by the local clock."""
        return self._is_held_by(self._caller())

    def __aenter__(self) -> Coroutine[Any, Any, AsyncLeaseAll]:
        return self._enter_block(entered_block(self), calling_task())

    __aexit__ = ExitOfBlock(TaskBlock)

    async def _enter_block(self, block: TaskBlock | None, task: Task[Any] | None) -> AsyncLeaseAll:
        attempt = await self._attempt(self._timeout, task)
        if attempt.lease is None:
            raise AcquireTimeout(lock=self.name, waited=attempt.waited, holder=attempt.holder)
        return attempt.lease._enter_body(block, task)

    async def _acquire(self, timeout: float | None, task: Task[Any] | None) -> AsyncLeaseAll | None:
        return (await self._attempt(timeout, task)).lease

    def _last_entered(self) -> AsyncLeaseAll:
        return self._last_of(self._caller())

    def _caller(self) -> Caller:
        return self._locks[0]._client._engine.runtime.caller()

    async def _attempt(self, timeout: float | None, task: Task[Any] | None) -> AcquireResult[AsyncLeaseAll]:
        parts = [Part(lock._client._engine, lock) for lock in self._locks]
        caller = self._caller() if task is None else AsyncioRuntime.caller_of(task)

        def together(leases: Sequence[AsyncLease]) -> AsyncLeaseAll:
            made = AsyncLeaseAll(leases, self._spec.on_lost, parts[0].engine.runtime)
            self._keep(caller, made)
            return made

        return await acquire_all(parts, timeout, together, caller)
