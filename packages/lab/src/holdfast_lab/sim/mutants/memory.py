"""The reference protocol with one bug each: the mistakes of server-side scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memory.port import QueueEntry, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, LeaseGone, Live, Ticket, Waiting
from holdfast.core.wakeups import Wakeups
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.memory import MemoryServer

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime


class DeadlineFromReply(MemoryBackend):
    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        if isinstance(outcome, Granted):
            return outcome._replace(deadline=lease_deadline(self._runtime.now(), ticket.ttl, 0.0))
        return outcome


class RenewalDeadlineFromReply(MemoryBackend):
    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone]:
        outcomes = await super().renew(tickets, deadline=deadline)
        return [
            Live(lease_deadline(self._runtime.now(), ticket.ttl, 0.0)) if isinstance(outcome, Live) else outcome
            for ticket, outcome in zip(tickets, outcomes, strict=True)
        ]


class RenewalByName(MemoryBackend):
    def _renew(self, store: Store, ticket: Ticket) -> bool:
        for entry in store.queues.get(ticket.name, {}).values():
            if entry.granted:
                entry.expires = self._runtime.now() + ticket.ttl
                return True
        return False


class RenewalRecreates(MemoryBackend):
    """`SET key nonce PX ttl` without a check: a renewal that arrives after the release acquires the lock."""

    def _renew(self, store: Store, ticket: Ticket) -> bool:
        entries = store.queues.setdefault(ticket.name, {})
        if ticket.nonce not in entries:
            store.process_state.last_number += 1
            entry = QueueEntry(ticket, store.process_state.last_number, self._runtime.now(), self._port.wake)
            entry.granted = True
            entries[ticket.nonce] = entry
        return super()._renew(store, ticket)


class ReleaseWithoutOwner(MemoryBackend):
    """`DEL key`: a late release ends the lease of the next holder."""

    def _release(self, store: Store, ticket: Ticket) -> bool:
        entries = store.queues.get(ticket.name, {})
        if ticket.nonce not in entries:
            for nonce, entry in entries.items():
                if entry.granted:
                    return super()._release(store, ticket._replace(nonce=nonce))
        return super()._release(store, ticket)


class ResendMakesSecondLease(MemoryBackend):
    """Every request is a new ticket to the server: a retry after a lost reply is queued behind the first one."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(ticket.name, {})
        if ticket.nonce in entries and entries[ticket.nonce].granted:
            ticket = ticket._replace(nonce=f"{ticket.nonce}+{len(entries)}")
        return super()._try_acquire(store, ticket, queue=queue)


class GrantsBeforeWaiters(MemoryBackend):
    """A client that finds the lock free acquires it before the waiters."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(ticket.name, {})
        now = self._runtime.now()
        waiting = {nonce: entry for nonce, entry in entries.items() if not entry.granted and nonce != ticket.nonce}
        if any(entry.granted and entry.expires > now for entry in entries.values()):
            return super()._try_acquire(store, ticket, queue=queue)
        for nonce in waiting:
            del entries[nonce]
        outcome = super()._try_acquire(store, ticket, queue=queue)
        store.queues.setdefault(ticket.name, {}).update(waiting)
        return outcome


class WriterIgnoresReaders(MemoryBackend):
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(ticket.name, {})
        readers = {nonce: entry for nonce, entry in entries.items() if entry.ticket.limit is None and entry.granted}
        if not ticket.exclusive or ticket.nonce in readers:
            return super()._try_acquire(store, ticket, queue=queue)
        for nonce in readers:
            del entries[nonce]
        outcome = super()._try_acquire(store, ticket, queue=queue)
        store.queues.setdefault(ticket.name, {}).update(readers)
        return outcome


class SemaphoreOffByOne(MemoryBackend):
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        if ticket.limit is not None and not ticket.exclusive:
            ticket = ticket._replace(limit=ticket.limit + 1)
        return super()._try_acquire(store, ticket, queue=queue)


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
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, ticket, queue=queue)
        entries = store.queues.get(ticket.name, {})
        mine = entries.get(ticket.nonce)
        if mine is not None and not isinstance(mine, _NeverExpires):
            replacement = _NeverExpires(ticket, mine.number, mine.since, mine.wake)
            replacement.granted, replacement.expires = mine.granted, mine.expires
            entries[ticket.nonce] = replacement
        return outcome


class _WakesOnlyWaiters(Wakeups):
    """Drops a wake-up that arrives between the poll and the wait."""

    def wake(self, nonce: str, news: str = "") -> None:
        if self._expected.get(nonce) is not None:
            super().wake(nonce, news)


class WakeupMissed(MemoryBackend):
    def __init__(self, url: str, port: object, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)  # type: ignore[arg-type]  # the server passed it
        self._wakeups = _WakesOnlyWaiters(runtime)
        self._port.listen(self._wakeups.wake)

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=1e6) if isinstance(outcome, Waiting) else outcome


class LeaseWithoutExpiry(MemoryBackend):
    """SETNX, then EXPIRE as a second step that fails: a holder that dies keeps the lock forever."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, ticket, queue=queue)
        if not isinstance(outcome, Waiting):
            store.queues[ticket.name][ticket.nonce].expires = 1e9
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
