"""Several locks as one, for threads. `aio/lock_all.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

from typing import Never

from holdfast.base_client import BaseLockAll, check_renewal
from holdfast.core import names
from holdfast.core.lease_groups import LeaseGroup, release_after_body, release_all, renew_all
from holdfast.core.leases import AcquireResult
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, Unset
from holdfast.core.names import Duration
from holdfast.errors import AcquireTimeout, HoldfastError
from holdfast.runtimes.blocks import ExitOfBlock, ForThreads, ThreadBlock, ThreadBlocks, entered_block
from holdfast.runtimes.threads import run_sync, warn_inside_loop


class LeaseAll(ThreadBlocks, LeaseGroup):
    """The leases of several locks, as one. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ()

    def release(self) -> None:
        """Release all locks, in one request for each store, from any thread.

        Raises:
            LockLost: a lease had ended or was broken before this. Work since then was not protected.
            NotHeld: they were released before.
            BackendError: no answer. The keeper repeats the release, and this may be called again.
        """
        run_sync(release_all(self))

    def renew(self, *, ttl: Duration | None = None) -> None:
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
        run_sync(renew_all(self, check_renewal(self._leases, ttl)))

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss of the leases: True at a loss, False after `timeout` seconds or a release."""
        first = self._leases[0]
        return run_sync(first._engine.wait_lost(first, names.check_timeout(timeout)))

    def _exit_block(self, error: BaseException | None) -> None:
        try:
            run_sync(release_after_body(self))
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the error of the body is raised

    def _interrupted_exit(self) -> None:
        for lease in self._leases:
            lease._engine.interrupted_exit(lease)


class LockAll(ForThreads, BaseLockAll[LeaseAll]):
    """Several named locks, acquired as one. Threads can share one object, because the state is in the leases."""

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> LeaseAll | None:
        """Acquire all locks and return their leases as one, or None after `timeout` seconds (0: do not wait).

        `blocking=False` is the same as timeout=0, as in threading. Give only one of the two.

        Raises:
            ConfigurationError: an argument is refused; the message names it and the reason.
            WouldDeadlock: this thread or task holds one of them.
            BackendUnavailable, OutcomeUnknown: a server gave no answer; never raised for a busy lock.
        """
        names.refuse_unknown("acquire", unknown, ACQUIRE_OPTIONS)
        return self._try(self._timeout_of(blocking, timeout)).lease

    def release(self) -> None:
        """Release what this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `LeaseAll.release`.
        """
        self._last_of(self._caller()).release()

    def __enter__(self) -> LeaseAll:
        block = entered_block(self)
        result = self._try(self._timeout)
        if result.lease is None:
            raise AcquireTimeout(lock=self.name, waited=result.waited, holder=result.holder)
        if block is not None:
            block.lease = result.lease
        return result.lease

    __exit__ = ExitOfBlock(ThreadBlock)

    def _try(self, timeout: float | None) -> AcquireResult[LeaseAll]:
        warn_inside_loop()
        return run_sync(self._acquire_all(LeaseAll, timeout, self._caller()))
