"""The reference protocol with one bug each: what a server-side script gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.memory.port import Place, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, LeaseGone, Live, Ticket, Waiting
from holdfast.core.wakeups import Wakeups
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.memory import MemoryServer

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
        for place in store.queues.get(ticket.name, {}).values():
            if place.granted:
                place.expires = self._runtime.now() + ticket.ttl
                return True
        return False


class RenewalRecreates(MemoryBackend):
    """`SET key nonce PX ttl` without a look at what is there: a renewal that comes after the release takes the lock."""

    def _renew(self, store: Store, ticket: Ticket) -> bool:
        places = store.queues.setdefault(ticket.name, {})
        if ticket.nonce not in places:
            store.lasting.last_number += 1
            place = Place(ticket, store.lasting.last_number, self._runtime.now(), self._port.ring)
            place.granted = True
            places[ticket.nonce] = place
        return super()._renew(store, ticket)


class ReleaseWithoutOwner(MemoryBackend):
    """`DEL key`: whoever comes too late to release its own lease ends its successor's."""

    def _release(self, store: Store, ticket: Ticket) -> bool:
        places = store.queues.get(ticket.name, {})
        if ticket.nonce not in places:
            for nonce, place in places.items():
                if place.granted:
                    return super()._release(store, ticket._replace(nonce=nonce))
        return super()._release(store, ticket)


class ResendMakesSecondLease(MemoryBackend):
    """Every enter is a new ticket to the server: a resend after a lost reply stands behind itself."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        places = store.queues.get(ticket.name, {})
        if ticket.nonce in places and places[ticket.nonce].granted:
            ticket = ticket._replace(nonce=f"{ticket.nonce}+{len(places)}")
        return super()._try_acquire(store, ticket, queue=queue)


class GrantBelowWaiters(MemoryBackend):
    """Whoever finds the lock free takes it, whoever waits."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        places = store.queues.get(ticket.name, {})
        now = self._runtime.now()
        waiting = {nonce: place for nonce, place in places.items() if not place.granted and nonce != ticket.nonce}
        if any(place.granted and place.expires > now for place in places.values()):
            return super()._try_acquire(store, ticket, queue=queue)
        for nonce in waiting:
            del places[nonce]
        outcome = super()._try_acquire(store, ticket, queue=queue)
        store.queues.setdefault(ticket.name, {}).update(waiting)
        return outcome


class WriterIgnoresReaders(MemoryBackend):
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        places = store.queues.get(ticket.name, {})
        readers = {nonce: place for nonce, place in places.items() if place.ticket.limit is None and place.granted}
        if not ticket.exclusive or ticket.nonce in readers:
            return super()._try_acquire(store, ticket, queue=queue)
        for nonce in readers:
            del places[nonce]
        outcome = super()._try_acquire(store, ticket, queue=queue)
        store.queues.setdefault(ticket.name, {}).update(readers)
        return outcome


class SemaphoreOfOneMore(MemoryBackend):
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        if ticket.limit is not None and not ticket.exclusive:
            ticket = ticket._replace(limit=ticket.limit + 1)
        return super()._try_acquire(store, ticket, queue=queue)


class _Immortal(Place):
    """A waiter that never lapses."""

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
        places = store.queues.get(ticket.name, {})
        mine = places.get(ticket.nonce)
        if mine is not None and not isinstance(mine, _Immortal):
            immortal = _Immortal(ticket, mine.number, mine.since, mine.ring)
            immortal.granted, immortal.expires = mine.granted, mine.expires
            places[ticket.nonce] = immortal
        return outcome


class _Deaf(Wakeups):
    """Hears only while somebody waits: what came between the look and the wait is gone."""

    def wake(self, nonce: str, news: str = "") -> None:
        if self._expected.get(nonce) is not None:
            super().wake(nonce, news)


class WakeupMissed(MemoryBackend):
    def __init__(self, url: str, port: object, runtime: Runtime) -> None:
        super().__init__(url, port, runtime)  # type: ignore[arg-type]  # it is what the server gave us
        self._wakeups = _Deaf(runtime)
        self._port.listen(self._wakeups.wake)

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=1e6) if isinstance(outcome, Waiting) else outcome


class ExpiryForgotten(MemoryBackend):
    """SETNX, then EXPIRE as a second step that never comes: a holder that dies keeps the lock for ever."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, ticket, queue=queue)
        if not isinstance(outcome, Waiting):
            store.queues[ticket.name][ticket.nonce].expires = 1e9
        return outcome


def server_with(protocol: type[MemoryBackend]) -> type[MemoryServer]:
    """The reference server, whose clients have this protocol."""
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
        mistake="a renewal prolongs whatever lease the lock has, whoever holds it",
        server=server_with(RenewalByName),
    ),
    Mutant(
        name="renewal-recreates",
        mistake="a renewal that arrives after the release takes the lock again",
        server=server_with(RenewalRecreates),
    ),
    Mutant(
        name="release-without-owner-check",
        mistake="a release ends whatever lease the lock has, whoever holds it",
        server=server_with(ReleaseWithoutOwner),
    ),
    Mutant(
        name="resend-makes-second-lease",
        mistake="an enter that is sent again is a second ticket",
        server=server_with(ResendMakesSecondLease),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="grant-below-waiters",
        mistake="whoever comes when the lock is free gets it, before those who wait",
        server=server_with(GrantBelowWaiters),
    ),
    Mutant(
        name="writer-ignores-readers",
        mistake="a writer is let in while somebody reads",
        server=server_with(WriterIgnoresReaders),
    ),
    Mutant(
        name="semaphore-of-one-more", mistake="a semaphore of n lets n + 1 in", server=server_with(SemaphoreOfOneMore)
    ),
    Mutant(
        name="dead-waiter-blocks",
        mistake="a waiter that died keeps its place, and everybody behind it out",
        server=server_with(DeadWaiterBlocks),
    ),
    Mutant(
        name="wake-up-missed",
        mistake="a wake-up between the look and the wait is missed, and nobody looks again",
        server=server_with(WakeupMissed),
    ),
    Mutant(
        name="expiry-forgotten",
        mistake="the lease is stored without its ttl: a dead holder keeps the lock",
        server=server_with(ExpiryForgotten),
    ),
]
