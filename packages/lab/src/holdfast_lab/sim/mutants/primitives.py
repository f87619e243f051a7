"""The primitives on top of locks, with one bug each: several locks, periods, delays, owners, revocation, elections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.memory.port import Register, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.acquire_all import Part, acquire_all
from holdfast.core.clock import DRIFT
from holdfast.core.deadlocks import Cycle, DeadlockDetector
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec
from holdfast.core.operators import REVOKED, Operators
from holdfast.core.periods import CLAIMED, Period, claim
from holdfast.core.tickets import Claim, Waiting
from holdfast.errors import OutcomeUnknown
from holdfast_lab.checking import history as h
from holdfast_lab.sim.client import SimClient, SimLease, SimLeaseGroup, SimLock
from holdfast_lab.sim.mutants.base import Mutant, replaced
from holdfast_lab.sim.mutants.engine import SimEngine
from holdfast_lab.sim.mutants.memory import server_with
from holdfast_lab.sim.world import Cancelled

# ── several locks ────────────────────────────────────────────────────────────────────────────────────────────────────


class KeepsGrantedLocks(SimEngine):
    """An attempt that times out keeps the locks that it has acquired."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kept: list[BaseLease] = []

    def end(self, lease: SimLease, reason: str = "") -> None:
        self._kept.append(lease)


class CallersOrder(SimClient):
    """Two callers that name the same locks in opposite order wait for each other."""

    def _in_order(self, locks: Sequence[SimLock]) -> list[SimLock]:
        return list(locks)


class _LosesOne(SimLeaseGroup):
    __slots__ = ()

    def _lose_all(self) -> None:
        """Report only the one loss, and keep the other leases."""
        if not self._is_reported:
            self._is_reported = True
            on_lost = self._on_lost
            if callable(on_lost):
                self._runtime.call(lambda: on_lost(self))


class LosesOne(SimClient):
    group_type = _LosesOne


class CancelledInTheMiddle(SimClient):
    """A cancelled call forgets the locks that it had requested."""

    async def _take_all(
        self,
        parts: Sequence[Part[SimLease]],
        timeout: float | None,
        make: Callable[[Sequence[SimLease]], SimLeaseGroup],
    ) -> AcquireResult[SimLeaseGroup]:
        pending = self.engine._keeper._schedule.pending
        before = set(pending)
        try:
            return await acquire_all(parts, timeout, make)
        except Cancelled:
            for nonce in set(pending) - before:
                del pending[nonce]
            raise


# ── once per period ──────────────────────────────────────────────────────────────────────────────────────────────────


class ClaimInTwoSteps(MemoryBackend):
    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        (current,) = await self.read_registers([name], deadline=deadline)
        if current >= number:
            return False

        def write(store: Store) -> None:
            store.process_state.registers[name] = Register(number, nonce, math.inf)

        await self._port.change(write, deadline=deadline)
        return True


class ClaimWithoutNonce(MemoryBackend):
    """A call that finds its number in the register takes it for its own write, as after a lost reply."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        await super().advance_register(name, number, nonce=nonce, keep=keep, deadline=deadline)
        (current,) = await self.read_registers([name], deadline=deadline)
        return current == number


class ClaimAlwaysRefused(MemoryBackend):
    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        await self.read_registers([name], deadline=deadline)
        return False


class UnansweredClaimSucceeds(SimClient):
    """After a lost reply, a claimed period is taken for the own claim."""

    async def _claim(self, job: str, period: Period) -> bool:
        number = period.number(self.runtime.wall())
        try:
            return await claim(self.engine, job, period)
        except OutcomeUnknown:
            (current,) = await self.engine.backend.read_registers(
                [f"{CLAIMED}{job}@{number}"], deadline=self.engine.request_deadline()
            )
            return current > 0


# ── lock delay ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ReleasedDuringLockDelay(SimEngine):
    """A lost lease is removed from the server at once."""

    def _delayed(self, lease: BaseLease) -> float:
        return 0.0


class LockDelayFromDeadline(SimEngine):
    """The delay of a lease that is lost early begins at its deadline, not at the loss."""

    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        super().__init__(backend, runtime, events, lease_type)
        self._deadlines: dict[str, float] = {}  # by nonce

    def lose(self, lease: BaseLease, reason: str, outcome: str = "gone") -> None:
        self._deadlines.setdefault(lease._claim.nonce, lease._deadline)
        super().lose(lease, reason, outcome)

    def _delayed(self, lease: BaseLease) -> float:
        delay = lease._spec.lock_delay
        return self._deadlines.get(lease._claim.nonce, lease._deadline) + delay if delay else 0.0


class _DelayCounts(SimLease):
    """The holder counts on it for as long as the server keeps it."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deadline += self._spec.lock_delay * (1 - DRIFT)


class DeadlineIncludesLockDelay(SimEngine):
    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        super().__init__(backend, runtime, events, _DelayCounts)

    def renewed(self, lease: BaseLease, deadline: float, spec: LockSpec) -> None:
        super().renewed(lease, deadline + spec.lock_delay * (1 - DRIFT), spec)


# ── named owners ─────────────────────────────────────────────────────────────────────────────────────────────────────


class OwnerIgnoresOthers(MemoryBackend):
    """An owner is granted together with any other owner."""

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(claim.name, {})
        now = self._runtime.now()
        others = {entry.claim.owner for entry in entries.values() if entry.granted and entry.expires > now} - {""}
        if claim.owner and others:
            claim = replaced(claim, owner=min(others))
        return super()._try_acquire(store, claim, queue=queue)


class OwnerHasNewFences(MemoryBackend):
    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        outcome = super()._try_acquire(store, claim, queue=queue)
        if isinstance(outcome, Waiting):
            return outcome
        entry = store.queues[claim.name][claim.nonce]
        entry.fence = entry.number
        return entry.fence


class ChecksOnlyEarlierTickets(MemoryBackend):
    """A waiter checks only the tickets before it: an owner's second ticket, granted before it, is queued after it."""

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        entries = store.queues.get(claim.name, {})
        mine = entries.get(claim.nonce)
        later = {} if mine is None else {nonce: entry for nonce, entry in entries.items() if entry.number > mine.number}
        for nonce in later:
            del entries[nonce]
        outcome = super()._try_acquire(store, claim, queue=queue)
        store.queues.setdefault(claim.name, entries).update(later)
        return outcome


class ReleaseEndsAllOfOwner(MemoryBackend):
    """A release ends all tickets of its owner."""

    def _release(self, store: Store, claim: Claim) -> bool:
        entries = store.queues.get(claim.name, {})
        if claim.owner and claim.nonce in entries:
            for nonce in [nonce for nonce, entry in entries.items() if entry.claim.owner == claim.owner]:
                if nonce != claim.nonce and entries[nonce].granted:
                    del entries[nonce]
        return super()._release(store, claim)


# ── revocation and elections ─────────────────────────────────────────────────────────────────────────────────────────


class _EveryHolder(Operators):
    """The request outlives the lease that it was for: the next holder receives it too."""

    async def revoke_requests(self, leases: Sequence[BaseLease], deadline: float) -> list[bool]:
        registers = [REVOKED + lease.name for lease in leases]
        return [fence > 0 for fence in await self._engine.backend.read_registers(registers, deadline=deadline)]


class RevocationReachesEveryHolder(SimEngine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.operators = _EveryHolder(self)


class _AtTheGrantOnly(Operators):
    """It reads requests only when it acquires the lock; a later request is not received."""

    async def revoke_requests(self, leases: Sequence[BaseLease], deadline: float) -> list[bool]:
        return [False for _ in leases]


class RevocationReadAtGrantOnly(SimEngine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.operators = _AtTheGrantOnly(self)


class TermsCountedLocally(SimClient):
    """The term of a candidate is the number of elections that it has won."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._won = 0

    def lead(self, lease: SimLease) -> None:
        self._won += 1
        self._add(h.Elected(self._world.now, self._process.name, lease.call, lease.name, self._won))


# ── deadlocks ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _OneWalk(DeadlockDetector):
    async def _confirm(self, cycle: Cycle, give_up: float) -> bool:
        return True


class DeadlockByOneWalk(SimEngine):
    detector_type = _OneWalk


class _AnyAge(DeadlockDetector):
    def _is_youngest(self, cycle: Cycle) -> bool:
        return True


class AllWaitersEndADeadlock(SimEngine):
    detector_type = _AnyAge


class _NoAge(DeadlockDetector):
    def _is_youngest(self, cycle: Cycle) -> bool:
        return False


class TheYoungestNeverEnds(SimEngine):
    detector_type = _NoAge


PRIMITIVES = [
    Mutant(
        name="lock-all-keeps-a-prefix",
        mistake="a call for several locks that times out keeps those that it has acquired",
        engine=KeepsGrantedLocks,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-in-the-callers-order",
        mistake="several locks are acquired in the order in which the caller names them",
        client=CallersOrder,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-loses-one",
        mistake="one of several locks acquired together is lost and the others stay held",
        client=LosesOne,
        workload="lock_all",
    ),
    Mutant(
        name="lock-all-cancelled-leaves-some",
        mistake="a cancelled call for several locks leaves its leases on the server",
        client=CancelledInTheMiddle,
        workload="lock_all",
    ),
    Mutant(
        name="claim-in-two-steps",
        mistake="a claim reads whether the period is claimed, and then writes its claim",
        server=server_with(ClaimInTwoSteps),
        workload="once_per",
    ),
    Mutant(
        name="claim-without-nonce",
        mistake="a claim takes any register that it finds for its own write",
        server=server_with(ClaimWithoutNonce),
        workload="once_per",
    ),
    Mutant(
        name="claim-always-refused",
        mistake="a claim is always refused",
        server=server_with(ClaimAlwaysRefused),
        workload="once_per",
    ),
    Mutant(
        name="unanswered-claim-succeeds",
        mistake="a claim that got no answer counts as a success if any client has claimed the period",
        client=UnansweredClaimSucceeds,
        workload="once_per",
    ),
    Mutant(
        name="released-during-lock-delay",
        mistake="a lost lease is removed from the server at once, although the lock has a delay",
        engine=ReleasedDuringLockDelay,
        workload="lock_delay",
    ),
    Mutant(
        name="lock-delay-from-deadline",
        mistake="a lease that is lost early keeps the lock until its old deadline and the delay",
        engine=LockDelayFromDeadline,
        backend="mysql-row",
        workload="lock_delay",
        kinds=frozenset({"restart"}),
        budget=1000,
    ),
    Mutant(
        name="deadline-includes-lock-delay",
        mistake="a holder counts on its lease until the end of the delay",
        engine=DeadlineIncludesLockDelay,
        workload="lock_delay",
    ),
    Mutant(
        name="owner-ignores-others",
        mistake="a named owner is granted together with another owner",
        server=server_with(OwnerIgnoresOthers),
        workload="owner",
    ),
    Mutant(
        name="owner-has-new-fences",
        mistake="an owner's second ticket has a new fence, so that the writes of the first one are refused",
        server=server_with(OwnerHasNewFences),
        workload="owner",
    ),
    Mutant(
        name="checks-only-earlier-tickets",
        mistake="a waiter does not see an owner's ticket that was granted before it",
        server=server_with(ChecksOnlyEarlierTickets),
        workload="owner",
    ),
    Mutant(
        name="release-ends-all-of-owner",
        mistake="a release ends all tickets of its owner",
        server=server_with(ReleaseEndsAllOfOwner),
        workload="owner",
    ),
    Mutant(
        name="revocation-reaches-every-holder",
        mistake="a revocation request reaches every later holder too",
        engine=RevocationReachesEveryHolder,
        workload="revoke",
    ),
    Mutant(
        name="revocation-read-at-grant-only",
        mistake="a revocation request that arrives after the grant is not received",
        engine=RevocationReadAtGrantOnly,
        workload="revoke",
        kinds=frozenset({"pause", "stall"}),  # so that leases are left when the faults end
    ),
    Mutant(
        name="terms-counted-locally",
        mistake="a leader's term is the number of elections that it has won",
        client=TermsCountedLocally,
        workload="election",
    ),
    Mutant(
        name="deadlock-by-one-walk",
        mistake="an attempt is ended by the first walk that finds a cycle",
        engine=DeadlockByOneWalk,
        workload="detect_deadlocks",
    ),
    Mutant(
        name="all-waiters-end-a-deadlock",
        mistake="every attempt of a cycle is ended, not only the youngest",
        engine=AllWaitersEndADeadlock,
        workload="detect_deadlocks",
    ),
    Mutant(
        name="the-youngest-never-ends",
        mistake="a cycle is found, but the attempt that has to end goes on",
        engine=TheYoungestNeverEnds,
        workload="detect_deadlocks",
    ),
]
