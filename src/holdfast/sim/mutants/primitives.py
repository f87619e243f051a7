"""What is built on locks and beside them, with one bug each: several at once, periods, delays, owners, requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.memory.port import Mark, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.checking import history as h
from holdfast.core.acquire_all import Part, acquire_all
from holdfast.core.clock import DRIFT
from holdfast.core.engine import AcquireResult
from holdfast.core.leases import BaseLease
from holdfast.core.periods import CLAIMED, Period, claim
from holdfast.core.tickets import Ticket, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast.sim.client import SimClient, SimLease, SimLeaseGroup, SimLock
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.mutants.engine import SimEngine
from holdfast.sim.mutants.memory import server_with
from holdfast.sim.world import Cancelled

# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


class KeepsAPrefix(SimEngine):
    """What was taken before the time was up stays taken: the next attempt will need it anyway."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kept: list[BaseLease] = []

    def give_back(self, hold: SimLease, reason: str = "") -> None:
        self._kept.append(hold)


class InTheCallersOrder(SimClient):
    """Two callers who name the same locks the other way round wait for each other."""

    def _in_order(self, locks: Sequence[SimLock]) -> list[SimLock]:
        return list(locks)


class _LosesOne(SimLeaseGroup):
    __slots__ = ()

    def _lose_all(self) -> None:
        """Only told, and only of the one."""
        if not self._is_reported:
            self._is_reported = True
            on_lost = self._on_lost
            if callable(on_lost):
                self._runtime.call(lambda: on_lost(self))


class LosesOne(SimClient):
    group_type = _LosesOne


class CancelledInTheMiddle(SimClient):
    """As with one lock, what was asked for when the cancellation came is forgotten."""

    async def _take_all(
        self,
        parts: Sequence[Part[SimLease]],
        timeout: float | None,
        make: Callable[[Sequence[SimLease]], SimLeaseGroup],
    ) -> AcquireResult[SimLeaseGroup]:
        debts = self.engine._keeper._pending
        before = set(debts)
        try:
            return await acquire_all(parts, timeout, make)
        except Cancelled:
            for nonce in set(debts) - before:
                del debts[nonce]
            raise


# ── once in a period ─────────────────────────────────────────────────────────────────────────────────────────────────


class MarkReadThenWritten(MemoryBackend):
    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        (there,) = await self.read_registers([name], deadline=deadline)
        if there >= number:
            return False

        def write(store: Store) -> None:
            store.lasting.marks[name] = Mark(number, nonce, math.inf)

        await self._port.change(write, deadline=deadline)
        return True


class MarkWithoutNonce(MemoryBackend):
    """Whoever finds the number that it wanted takes it for its own: it may have been, after a lost reply."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        await super().advance_register(name, number, nonce=nonce, keep=keep, deadline=deadline)
        (there,) = await self.read_registers([name], deadline=deadline)
        return there == number


class MarkNever(MemoryBackend):
    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        await self.read_registers([name], deadline=deadline)
        return False


class UnknownClaimIsOurs(SimClient):
    """After a lost reply it looks whether the period is claimed, and takes that for its own claim."""

    async def _claim(self, job: str, period: Period) -> bool:
        number = period.number(self.runtime.wall())
        try:
            return await claim(self.engine, job, period)
        except OutcomeUnknown:
            (there,) = await self.engine.backend.read_registers(
                [f"{CLAIMED}{job}@{number}"], deadline=self.engine.request_deadline()
            )
            return there > 0


# ── a delay after a loss ─────────────────────────────────────────────────────────────────────────────────────────────


class PaidInTheDelay(SimEngine):
    """A lost lease is taken off the server at once."""

    def _delayed(self, hold: BaseLease) -> float:
        return 0.0


class _Lasting(SimLease):
    """It is believed for as long as the server has it."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deadline += self._spec.lock_delay * (1 - DRIFT)


class BeliefLastsThroughTheDelay(SimEngine):
    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        super().__init__(backend, runtime, events, _Lasting)

    def renewed(self, hold: BaseLease, deadline: float) -> None:
        super().renewed(hold, deadline + hold._spec.lock_delay * (1 - DRIFT))


# ── a named owner ────────────────────────────────────────────────────────────────────────────────────────────────────


class OwnerIgnoresOthers(MemoryBackend):
    """An owner is let in beside whoever is in."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        places = store.queues.get(ticket.name, {})
        now = self._runtime.now()
        others = {place.ticket.owner for place in places.values() if place.granted and place.expires > now} - {""}
        if ticket.owner and others:
            ticket = ticket._replace(owner=min(others))
        return super()._try_acquire(store, ticket, queue=queue)


class OwnerHasNewFences(MemoryBackend):
    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, ticket, queue=queue)
        if isinstance(outcome, Waiting):
            return outcome
        place = store.queues[ticket.name][ticket.nonce]
        place.fence = place.number
        return place.fence


class OwnerSeenAheadOnly(MemoryBackend):
    """Whoever waits looks at those before it: an owner's second ticket, let in past it, stands behind."""

    def _try_acquire(self, store: Store, ticket: Ticket, *, queue: bool) -> int | Waiting:
        places = store.queues.get(ticket.name, {})
        mine = places.get(ticket.nonce)
        behind = {} if mine is None else {nonce: place for nonce, place in places.items() if place.number > mine.number}
        for nonce in behind:
            del places[nonce]
        outcome = super()._try_acquire(store, ticket, queue=queue)
        store.queues.setdefault(ticket.name, places).update(behind)
        return outcome


class OwnerLeavesWithAll(MemoryBackend):
    """A release ends what its owner has, and not only the one ticket."""

    def _release(self, store: Store, ticket: Ticket) -> bool:
        places = store.queues.get(ticket.name, {})
        if ticket.owner and ticket.nonce in places:
            for nonce in [nonce for nonce, place in places.items() if place.ticket.owner == ticket.owner]:
                if nonce != ticket.nonce and places[nonce].granted:
                    del places[nonce]
        return super()._release(store, ticket)


# ── requests to let go, and elections ────────────────────────────────────────────────────────────────────────────────


class RequestHeardByAll(SimEngine):
    """That somebody was asked is kept for longer than that somebody holds: the next one hears it too."""

    async def requests(self, holds: Sequence[BaseLease], deadline: float) -> list[bool]:
        marks = await self.backend.read_registers([f"revoke:{hold.name}" for hold in holds], deadline=deadline)
        return [mark > 0 for mark in marks]


class RequestHeardAtTheGrantOnly(SimEngine):
    """It looks once, when it takes the lock; who asks later is not heard."""

    async def requests(self, holds: Sequence[BaseLease], deadline: float) -> list[bool]:
        return [False for _ in holds]


class TermsOfItsOwn(SimClient):
    """A candidate counts the elections that it has won."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._won = 0

    def lead(self, lease: SimLease) -> None:
        self._won += 1
        self._add(h.Elected(self._world.now, self._process.name, lease.call, lease.name, self._won))


PRIMITIVES = [
    Mutant(
        name="lock-all-keeps-a-prefix",
        mistake="a call for several locks that gives up keeps those that it has",
        engine=KeepsAPrefix,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-in-the-callers-order",
        mistake="several locks are taken in the order in which the caller names them",
        client=InTheCallersOrder,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-loses-one",
        mistake="of several locks that were taken at once, one is lost and the others go on",
        client=LosesOne,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-cancelled-leaves-some",
        mistake="a call for several locks that is cancelled leaves on the server what it had",
        client=CancelledInTheMiddle,
        workload="lock_all",
    ),
    Mutant(
        name="mark-read-then-written",
        mistake="a claim looks whether the period is claimed, and then writes that it is",
        server=server_with(MarkReadThenWritten),
        workload="once_per",
    ),
    Mutant(
        name="mark-without-nonce",
        mistake="a claim takes the mark that it finds for its own, whoever made it",
        server=server_with(MarkWithoutNonce),
        workload="once_per",
    ),
    Mutant(
        name="mark-never",
        mistake="a claim is always refused",
        server=server_with(MarkNever),
        workload="once_per",
    ),
    Mutant(
        name="unknown-claim-is-ours",
        mistake="a claim that got no answer counts as a success if somebody has claimed the period",
        client=UnknownClaimIsOurs,
        workload="once_per",
    ),
    Mutant(
        name="paid-in-the-delay",
        mistake="a lost lease is taken off the server at once, although the lock has a delay",
        engine=PaidInTheDelay,
        workload="lock_delay",
    ),
    Mutant(
        name="belief-lasts-through-the-delay",
        mistake="a holder believes for as long as the server keeps others out, the delay included",
        engine=BeliefLastsThroughTheDelay,
        workload="lock_delay",
    ),
    Mutant(
        name="owner-ignores-others",
        mistake="a named owner is let in beside another one",
        server=server_with(OwnerIgnoresOthers),
        workload="owner",
    ),
    Mutant(
        name="owner-has-new-fences",
        mistake="an owner's second ticket has a fence of its own, so that the first one's work is refused",
        server=server_with(OwnerHasNewFences),
        workload="owner",
    ),
    Mutant(
        name="owner-seen-ahead-only",
        mistake="who waits does not see an owner's ticket that was let in past it",
        server=server_with(OwnerSeenAheadOnly),
        workload="owner",
    ),
    Mutant(
        name="owner-leaves-with-all",
        mistake="a release ends all that its owner has",
        server=server_with(OwnerLeavesWithAll),
        workload="owner",
    ),
    Mutant(
        name="request-heard-by-all",
        mistake="a request to let go is heard by every later holder too",
        engine=RequestHeardByAll,
        workload="revoke",
    ),
    Mutant(
        name="request-not-heard",
        mistake="a request to let go that comes after the grant is not heard",
        engine=RequestHeardAtTheGrantOnly,
        workload="revoke",
        kinds=frozenset({"pause", "stall"}),  # so that there are leases left when the world is healed
    ),
    Mutant(
        name="terms-of-its-own",
        mistake="a leader's term is the number of elections that it has won itself",
        client=TermsOfItsOwn,
        workload="election",
    ),
]
