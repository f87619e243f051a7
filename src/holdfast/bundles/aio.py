"""Several locks as one, for asyncio: `threads.py`, awaited. The same names and words; a test keeps them alike."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.core import names
from holdfast.core.bundles import Bundle, leave_body, release_all, renew_all, shown
from holdfast.core.handles import UNSET, Handle, Unset
from holdfast.core.taking import Part, take_all
from holdfast.errors import AcquireTimeout, HoldfastError
from holdfast.runtimes.aio import Body

if TYPE_CHECKING:
    from holdfast.aio import AsyncLease, AsyncLock
    from holdfast.core.engine import Attempt
    from holdfast.core.holds import Terms
    from holdfast.core.ports import Owner


class AsyncLeaseAll(Bundle):
    """The leases of several locks, as one. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ("_body",)

    _body: Body | None

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
        first = self._holds[0]
        return await first._engine.wait_lost(first, names.check_timeout(timeout))

    async def __aenter__(self) -> Self:
        return self._enter_body()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._hook = (self._body if self._hook is not None else None), None
        ended_by_us = body is not None and body.leave(error)
        try:
            await leave_body(self)
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the body's own error goes first
        if ended_by_us:
            raise self._loss() from error

    def _enter_body(self) -> Self:
        """From here on a loss cancels the body."""
        if self._on_lost != "event":
            self._body = Body()
            self._hook = self._body.tell_lost
        return self


class AsyncLockAll(Handle[AsyncLeaseAll]):
    """Several named locks, taken as one. Tasks can share one object: what they hold is in the leases."""

    def __init__(self, locks: Sequence[AsyncLock], terms: Terms, timeout: float | None) -> None:
        super().__init__(terms._replace(name=shown([lock.name for lock in locks])), timeout)
        self._locks = tuple(locks)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the locks, in the order in which they are taken."""
        return tuple(lock.name for lock in self._locks)

    async def acquire(self, *, timeout: float | Unset | None = UNSET, **unknown: object) -> AsyncLeaseAll | None:
        """Take all locks and return their leases as one, or None when `timeout` seconds are over (0: do not wait).

        Raises:
            WouldDeadlock: this thread or task holds one of them already.
            BackendUnavailable, OutcomeUnknown: a server could not be asked; never raised for "busy".
        """
        names.refuse_unknown("acquire", unknown)
        return (await self._attempt(self.waits(timeout))).lease

    async def release(self) -> None:
        """Give back what this thread or task took last through this object.

        Raises:
            NotHeld: there is nothing.
            LockLost, BackendError: see `LeaseAll.release`.
        """
        await self.last_of(self._owner()).release()

    @property
    def held(self) -> bool:
        """This thread or task holds them, by the local clock."""
        return self.is_held_by(self._owner())

    async def __aenter__(self) -> AsyncLeaseAll:
        attempt = await self._attempt(self._timeout)
        if attempt.lease is not None:
            return attempt.lease._enter_body()
        raise AcquireTimeout(lock=self.name, waited=attempt.waited, holder=attempt.holder)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.last_of(self._owner()).__aexit__(kind, error, trace)

    def _owner(self) -> Owner:
        return self._locks[0]._client._engine.runtime.owner()

    async def _attempt(self, timeout: float | None) -> Attempt[AsyncLeaseAll]:
        owner = self._owner()
        parts = [Part(lock._client._engine, lock) for lock in self._locks]

        def together(leases: Sequence[AsyncLease]) -> AsyncLeaseAll:
            made = AsyncLeaseAll(leases, self.terms.on_lost, parts[0].engine.runtime)
            self.keep(owner, made)
            return made

        return await take_all(parts, timeout, together)
