"""The reference protocol with one bug each: the mistakes of server-side scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memory.port import QueueEntry, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, Notification, Waiting
from holdfast_lab.sim.mutants.base import Mutant, replaced
from holdfast_lab.sim.servers.memory import MemoryServer

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime


class DeadlineFromReply(MemoryBackend):
    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        if isinstance(outcome, Granted):
            return outcome._replace(deadline=lease_deadline(self._runtime.now(), claim.ttl, 0.0))
        return outcome


class RenewalDeadlineFromReply(MemoryBackend):
    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        outcomes = await super().renew(claims, deadline=deadline)
        return [
            Live(lease_deadline(self._runtime.now(), claim.ttl, 0.0)) if isinstance(outcome, Live) else outcome
            for claim, outcome in zip(claims, outcomes, strict=True)
        ]


class RenewalByName(MemoryBackend):
    def _renew(self, store: Store, claim: Claim) -> bool:
        for entry in store.queues.get(claim.name, {}).values():
            if entry.granted:
                entry.expires = self._runtime.now() + claim.ttl
                return True
        return False


class RenewalRecreates(MemoryBackend):
    """`SET key nonce PX ttl` without a check: a renewal that arrives after the release acquires the lock."""

    def _renew(self, store: Store, claim: Claim) -> bool:
        entries = store.queues.setdefault(claim.name, {})
        if claim.nonce not in entries:
            store.process_state.last_number += 1
            entry = QueueEntry(claim, store.process_state.last_number, self._runtime.now(), self._port.wake)
            entry.granted = True
            entries[claim.nonce] = entry
        return super()._renew(store, claim)


class ReleaseWithoutOwner(MemoryBackend):
    """`DEL key`: a late release ends the lease of the next holder."""

    def _release(self, store: Store, claim: Claim) -> bool:
        entries = store.queues.get(claim.name, {})
        if claim.nonce not in entries:
            for nonce, entry in entries.items():
                if entry.granted:
                    return super()._release(store, replaced(claim, nonce=nonce))
        return super()._release(store, claim)


class ResendMakesSecondLease(MemoryBackend):
    """Every request is a new ticket to the server: a retry after a lost reply is queued behind the first one."""

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(claim.name, {})
        if claim.nonce in entries and entries[claim.nonce].granted:
            claim = replaced(claim, nonce=f"{claim.nonce}+{len(entries)}")
        return super()._try_acquire(store, claim, queue=queue)


class GrantsBeforeWaiters(MemoryBackend):
    """A client that finds the lock free acquires it before the waiters."""

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(claim.name, {})
        now = self._runtime.now()
        waiting = {nonce: entry for nonce, entry in entries.items() if not entry.granted and nonce != claim.nonce}
        if any(entry.granted and entry.expires > now for entry in entries.values()):
            return super()._try_acquire(store, claim, queue=queue)
        for nonce in waiting:
            del entries[nonce]
        outcome = super()._try_acquire(store, claim, queue=queue)
        store.queues.setdefault(claim.name, {}).update(waiting)
        return outcome


class WriterIgnoresReaders(MemoryBackend):
    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(claim.name, {})
        readers = {nonce: entry for nonce, entry in entries.items() if entry.claim.limit is None and entry.granted}
        if not claim.exclusive or claim.nonce in readers:
            return super()._try_acquire(store, claim, queue=queue)
        for nonce in readers:
            del entries[nonce]
        outcome = super()._try_acquire(store, claim, queue=queue)
        store.queues.setdefault(claim.name, {}).update(readers)
        return outcome


class SemaphoreOffByOne(MemoryBackend):
    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        if claim.limit is not None and not claim.exclusive:
            claim = replaced(claim, limit=claim.limit + 1)
        return super()._try_acquire(store, claim, queue=queue)


class _NeverExpires(QueueEntry):
    """A waiter that never expires."""

    __slots__ = ("_until",)

    _until: float

    @property
    def expires(self) -> float:
        return self._until if self.granted else 1e9

    @expires.setter
    def expires(self, until: float) -> None:
        self._until = until


class DeadWaiterBlocks(MemoryBackend):
    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, claim, queue=queue)
        entries = store.queues.get(claim.name, {})
        mine = entries.get(claim.nonce)
        if mine is not None and not isinstance(mine, _NeverExpires):
            replacement = _NeverExpires(claim, mine.number, mine.since, mine.wake)
            replacement.granted, replacement.expires = mine.granted, mine.expires
            entries[claim.nonce] = replacement
        return outcome


class _WakesOnlyWaiters(Wakeups):
    """Drops a wake-up that arrives between the poll and the wait."""

    def wake(self, notification: Notification) -> None:
        claim = self._expected.get(notification.nonce)
        if claim is not None and claim.event is not None:
            super().wake(notification)


class WakeupMissed(MemoryBackend):
    def __init__(self, url: str, port: object, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)  # type: ignore[arg-type]  # the server passed it
        self._wakeups = self._port.wakeups = _WakesOnlyWaiters(runtime)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=1e6) if isinstance(outcome, Waiting) else outcome


class LeaseWithoutExpiry(MemoryBackend):
    """SETNX, then EXPIRE as a second step that fails: a holder that dies keeps the lock forever."""

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, claim, queue=queue)
        if not isinstance(outcome, Waiting):
            store.queues[claim.name][claim.nonce].expires = 1e9
        return outcome


def server_with(protocol: type[MemoryBackend]) -> type[MemoryServer]:
    """The reference server with clients that use this protocol."""
    return type(f"{protocol.__name__}Server", (MemoryServer,), {"backend": protocol})


PROTOCOLS = [
    Mutant(
        name="deadline-from-reply",
        mistake="the deadline counts from the reply, not from before the request",
        server=server_with(DeadlineFromReply),
    ),
    Mutant(
        name="renewal-deadline-from-reply",
        mistake="a renewed deadline counts from the reply, not from before the request",
        server=server_with(RenewalDeadlineFromReply),
        kinds=frozenset({"slow", "stall"}),
        budget=2000,
    ),
    Mutant(
        name="renewal-by-name",
        mistake="a renewal extends the current lease of the lock, even if it belongs to another holder",
        server=server_with(RenewalByName),
    ),
    Mutant(
        name="renewal-recreates",
        mistake="a renewal that arrives after the release acquires the lock again",
        server=server_with(RenewalRecreates),
    ),
    Mutant(
        name="release-without-owner-check",
        mistake="a release ends the current lease of the lock, even if it belongs to another holder",
        server=server_with(ReleaseWithoutOwner),
    ),
    Mutant(
        name="resend-makes-second-lease",
        mistake="a request that is sent again is a second ticket",
        server=server_with(ResendMakesSecondLease),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="grants-before-waiters",
        mistake="a client that finds the lock free acquires it before the waiters",
        server=server_with(GrantsBeforeWaiters),
    ),
    Mutant(
        name="writer-ignores-readers",
        mistake="a writer is granted while a reader holds the lock",
        server=server_with(WriterIgnoresReaders),
    ),
    Mutant(
        name="semaphore-off-by-one",
        mistake="a semaphore of n grants n + 1 permits",
        server=server_with(SemaphoreOffByOne),
    ),
    Mutant(
        name="dead-waiter-blocks",
        mistake="a waiter that died keeps its place and blocks all later waiters",
        server=server_with(DeadWaiterBlocks),
    ),
    Mutant(
        name="wake-up-missed",
        mistake="a wake-up between the poll and the wait is missed, and the waiter does not poll again",
        server=server_with(WakeupMissed),
    ),
    Mutant(
        name="lease-without-expiry",
        mistake="the lease is stored without its ttl: a dead holder keeps the lock",
        server=server_with(LeaseWithoutExpiry),
    ),
]
