"""Locks and leases for threads. `aio/locks.py` has the same names and words; a test keeps them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from holdfast.base_client import BaseRWLock, check_renewal, check_transfer, transfer_text
from holdfast.core import names
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec
from holdfast.core.locks import ACQUIRE_OPTIONS, UNSET, BaseLock, Unset
from holdfast.core.names import Duration
from holdfast.errors import AcquireTimeout, HoldfastError
from holdfast.runtimes import threads as runtime
from holdfast.runtimes.blocks import ExitOfBlock, ForThreads, ThreadBlock, ThreadBlocks, entering
from holdfast.runtimes.threads import run_sync, suspended

if TYPE_CHECKING:
    from holdfast.threads.client import Client


class Lease(ThreadBlocks, BaseLease):
    """One successful acquisition, until it is released or lost. Truthy; ends with `release()` or a `with` block."""

    __slots__ = ()

    def release(self) -> None:
        """Release the lock, from any thread.

        Raises:
            LockLost: the lease had ended or was broken before this. Work since then was not protected.
            NotHeld: it was released before.
            BackendError: no answer. The keeper repeats the release, and this may be called again.
        """
        engine = self._engine
        coroutine = engine.release_straight(engine, self)
        # As run_sync does, without a function call and an exception.
        for _ in coroutine.__await__():
            raise suspended(coroutine)

    def renew(self, *, ttl: Duration | None = None) -> None:
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
        run_sync(self._engine.renew(self, ttl=check_renewal((self,), ttl)))

    def transfer(self, *, within: Duration = 30.0) -> str:
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
        nonce, min_hold_left = run_sync(self._engine.transfer(self, seconds))
        return transfer_text(self, nonce, min_hold_left)

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait for the loss of the lease: True at a loss, False after `timeout` seconds or a release."""
        return run_sync(self._engine.wait_lost(self, names.check_timeout(timeout)))

    def _exit_block(self, error: BaseException | None) -> None:
        engine = self._engine
        coroutine = engine.release_straight(engine, self, after_body=True)
        try:
            # As run_sync does, without a function call and an exception.
            for _ in coroutine.__await__():
                raise suspended(coroutine)
        except HoldfastError as also:
            if error is None:
                raise
            error.add_note(f"holdfast: {also}")  # the error of the body is raised

    def _interrupted_exit(self) -> None:
        self._engine.interrupted_exit(self)


class Lock(ForThreads, BaseLock[Lease]):
    """A named lock. Threads can share one object, because the state is in the leases."""

    def __init__(self, client: Client, spec: LockSpec, timeout: float | None) -> None:
        super().__init__(spec, timeout)
        self._client: Client = client

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002 - as threading.Lock has it
        *,
        timeout: Duration | Unset | None = UNSET,
        **unknown: Never,
    ) -> Lease | None:
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
        return self._try(seconds).lease

    def release(self) -> None:
        """Release the lease that this thread or task acquired last through this object.

        Raises:
            NotHeld: there is none.
            LockLost, BackendError: see `Lease.release`.
        """
        self._last_of(self._caller()).release()

    def locked(self) -> bool:
        """Whether a client holds it now, according to the server."""
        return bool(self._client.inspect(self.name).holders)

    def __enter__(self) -> Lease:
        block, entering.block = entering.block, None  # as `entered_block` does, without a function call
        lease, holder, waited = self._try(self._timeout)
        if lease is None:
            raise AcquireTimeout(lock=self.name, waited=waited, holder=holder)
        if block is not None and (block._lock is self or block._lock is None):
            block.lease = lease
        return lease

    __exit__ = ExitOfBlock(ThreadBlock)

    def _try(self, timeout: float | None) -> AcquireResult[Lease]:
        if runtime.running_loop is None or runtime.running_loop() is not None:
            runtime.warn_inside_loop()
        client = self._client
        engine = client._current if client._current is not None and not client._closed else client._engine
        coroutine = engine.acquire(self, timeout)
        try:
            coroutine.send(None)  # as run_sync does, without a function call
        except StopIteration as stop:
            result: AcquireResult[Lease] = stop.value
            return result
        raise suspended(coroutine)


class Semaphore(Lock):
    """A lock that `limit` callers may hold at once. One thread or task may acquire several permits."""

    def locked(self) -> bool:
        """Whether no permit is left, according to the server."""
        return len(self._client.inspect(self.name).holders) >= (self._spec.limit or 1)


class RWLock(BaseRWLock[Lock]):
    """A lock for many readers or one writer, served in order: a waiting writer blocks later readers."""
