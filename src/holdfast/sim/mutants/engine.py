"""Engines and keepers with one bug each. Most are bugs of libraries that people use: research has the cases."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.engine import AcquireResult, Engine
from holdfast.core.events import Event
from holdfast.core.keeper import Keeper
from holdfast.core.leases import BaseLease, Phase
from holdfast.core.tickets import Granted, Ticket, Waiting
from holdfast.errors import BackendError, ThreadStartError
from holdfast.sim.client import SimLease
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller

SimEngine = Engine[SimLease]


class _WithKeeper(SimEngine):
    """An engine with a mutant keeper."""

    keeper_type: type[Keeper] = Keeper

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._keeper = self.keeper_type(self)


class _WithBackend(SimEngine):
    """An engine that hears something else than what its backend says."""

    def __init__(self, backend: Any, *arguments: Any) -> None:
        super().__init__(self.wrap(backend), *arguments)

    def wrap(self, backend: Any) -> Any:
        try_acquire = backend.try_acquire

        async def heard(ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
            return self.hear(await try_acquire(ticket, queue=self.queues(queue=queue), deadline=deadline))

        backend.try_acquire = heard
        return backend

    def hear(self, outcome: Granted | Waiting) -> Granted | Waiting:
        return outcome

    def queues(self, *, queue: bool) -> bool:
        return queue


class LateReplyIsAGrant(_WithBackend):
    def hear(self, outcome: Granted | Waiting) -> Granted | Waiting:
        if isinstance(outcome, Granted):
            return outcome._replace(deadline=max(outcome.deadline, self.runtime.now() + 3.0))
        return outcome


class NoSecondLook(_WithBackend):
    def hear(self, outcome: Granted | Waiting) -> Granted | Waiting:
        return outcome._replace(poll_after=1e6) if isinstance(outcome, Waiting) else outcome


class ZeroTimeoutQueues(_WithBackend):
    def queues(self, *, queue: bool) -> bool:
        return True


class LateSuccessRevives(SimEngine):
    def renewed(self, lease: BaseLease, deadline: float) -> None:
        if lease._phase is Phase.LOST:
            lease._phase = Phase.HELD
            lease._deadline = deadline
        super().renewed(lease, deadline)

    def lose(self, lease: BaseLease, reason: str) -> None:
        super().lose(lease, reason)
        self._keeper.cancel(lease._ticket)  # so that there is something to revive


class LossNotTold(SimEngine):
    def _report_lost(self, lease: BaseLease) -> None:
        """Only logged, say."""


class NonceDroppedBeforeRelease(SimEngine):
    def schedule(self, lease: SimLease) -> None:
        lease._phase = Phase.UNCONFIRMED


class CancelledAcquireLeavesTicket(SimEngine):
    async def acquire(
        self, lock: BaseLock[SimLease], timeout: float | None, caller: Caller | None = None
    ) -> AcquireResult[SimLease]:
        before = set(self._keeper._pending)
        try:
            return await super().acquire(lock, timeout, caller)
        except Cancelled:
            for nonce in set(self._keeper._pending) - before:
                del self._keeper._pending[nonce]
            raise


class TimeoutRestartsAtWake(SimEngine):
    """As kazoo's lock did: the time is counted anew after every wake-up, be it only for another look."""

    _waits = 0

    async def _wait(self, ticket: Ticket, until: float) -> None:
        self._waits += 1
        await super()._wait(ticket, until)

    async def acquire_new(
        self, lock: BaseLock[SimLease], caller: Caller, timeout: float | None
    ) -> AcquireResult[SimLease]:
        while True:
            before = self._waits
            result = await super().acquire_new(lock, caller, timeout)
            if result.lease is not None or not timeout or self._waits < before + 2:
                return result


class BusySaidOfSilence(SimEngine):
    async def acquire_new(
        self, lock: BaseLock[SimLease], caller: Caller, timeout: float | None
    ) -> AcquireResult[SimLease]:
        try:
            return await super().acquire_new(lock, caller, timeout)
        except BackendError:
            return AcquireResult(None)


class BelievesTheServerOnly(SimEngine):
    """No clock of its own: a lease counts as held until the server says otherwise."""

    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        class Believer(lease_type):  # type: ignore[misc, valid-type]  # a class that is made here
            __slots__ = ()

            @property
            def _stop_at(self) -> float:
                return 1e9

        super().__init__(backend, runtime, events, Believer)


class _DiesAtFirstError(Keeper):
    def _again(self, leases: Sequence[BaseLease]) -> None:
        for lease in leases:
            lease._renew_at = 1e9  # unless a success, which comes after this, says otherwise
        with self._mutex:
            for lease in leases:
                self._renewals.add(lease)


class _ForgetsDebts(Keeper):
    def _put_off(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._pending.pop(ticket.nonce, None)


class _PaysNothing(Keeper):
    def schedule(self, ticket: Ticket, after: float = 0.0, caller: weakref.ref[Caller] | None = None) -> None:
        """Nobody owes anything."""


class _OneTry(Keeper):
    def _limit(self) -> float:
        now, (_, alarms) = self._runtime.now(), self._lists()
        alarm = alarms.earliest()
        limit = now + self._engine.io_timeout
        return limit if alarm is None else min(limit, max(alarm, now + 0.05))


class _TimerDoesIo(Keeper):
    async def _tick(self, number: int) -> bool:
        self._report_expired(self._runtime.now())
        due = self._due_for(number, self._runtime.now())
        if due is None:
            return await super()._tick(number)
        await self._do(due)
        return True


class _ForgetsWithoutThread(Keeper):
    def _ensure_timer(self, when: float) -> None:
        try:
            super()._ensure_timer(when)
        except ThreadStartError:
            self._pending.clear()
            raise


class OneTryForARenewal(_WithKeeper):
    keeper_type = _OneTry


class AlarmBehindRequest(_WithKeeper):
    keeper_type = _TimerDoesIo


class SubscribersBeforeTheHolder(SimEngine):
    """The event first: a slow subscriber delays the report of the loss."""

    def _report_lost(self, lease: BaseLease) -> None:
        tell = super()._report_lost
        self._report(Event("lost", lease.name, lease.fence, 0.0, lease._reason))
        self.runtime.notify(lambda: tell(lease), here=False)


class UnkeptIsLeft(_WithKeeper):
    """A lock that was granted when no thread could be started to keep it is left to lapse."""

    keeper_type = _ForgetsWithoutThread

    async def _withdraw(self, ticket: Ticket, give_up: float) -> None:
        if self._keeper._timer:
            await super()._withdraw(ticket, give_up)


class RenewsByTheTtlOnly(SimEngine):
    """A lease whose grant took long is renewed a third of its ttl later all the same."""

    def _publish(self, lease: SimLease, lock: BaseLock[SimLease], caller: Caller) -> None:
        lease._renew_at = lease._since + lease.ttl / 3
        super()._publish(lease, lock, caller)


class RenewalDiesAtFirstError(_WithKeeper):
    keeper_type = _DiesAtFirstError


class DebtForgotten(_WithKeeper):
    keeper_type = _ForgetsDebts


class NoDebts(_WithKeeper):
    keeper_type = _PaysNothing


ENGINES = [
    Mutant(
        name="late-reply-is-a-grant",
        mistake="a reply that comes after the lease's deadline is taken as a grant",
        engine=LateReplyIsAGrant,
    ),
    Mutant(
        name="no-second-look",
        mistake="a waiter relies on being woken: a wake-up that gets lost leaves it waiting",
        engine=NoSecondLook,
    ),
    Mutant(name="zero-timeout-queues", mistake="timeout=0 takes a place in line", engine=ZeroTimeoutQueues),
    Mutant(
        name="late-success-revives",
        mistake="a renewal that succeeds after the loss makes the lease held again",
        engine=LateSuccessRevives,
    ),
    Mutant(name="loss-not-told", mistake="a loss is noticed, and told to nobody", engine=LossNotTold),
    Mutant(
        name="nonce-dropped-before-release",
        mistake="a release that gets no answer is not repeated",
        engine=NonceDroppedBeforeRelease,
    ),
    Mutant(
        name="cancelled-acquire-leaves-ticket",
        mistake="an acquire that is cancelled leaves its ticket on the server",
        engine=CancelledAcquireLeavesTicket,
    ),
    Mutant(
        name="timeout-restarts-at-wake",
        mistake="the timeout is counted anew after every wake-up",
        engine=TimeoutRestartsAtWake,
    ),
    Mutant(
        name="busy-said-of-silence",
        mistake="an acquire that could not ask the server says that the lock is busy",
        engine=BusySaidOfSilence,
    ),
    Mutant(
        name="believes-the-server-only",
        mistake="a holder counts on the server to tell it of a loss, and looks at no clock",
        engine=BelievesTheServerOnly,
    ),
    Mutant(
        name="renewal-dies-at-first-error",
        mistake="one failed renewal ends all renewal of that lease",
        engine=RenewalDiesAtFirstError,
    ),
    Mutant(name="debt-forgotten", mistake="a ticket that is owed is tried once, and forgotten", engine=DebtForgotten),
    Mutant(
        name="one-try-for-a-renewal",
        mistake="a renewal waits for its answer until the lease has ended: one lost reply costs the lease",
        engine=OneTryForARenewal,
        kinds=frozenset({"lose_reply"}),
        budget=1000,
    ),
    Mutant(
        name="alarm-behind-request",
        mistake="the report of a loss waits until a request has its answer",
        engine=AlarmBehindRequest,
        kinds=frozenset({"lose_reply", "overrun"}),
        budget=1000,
    ),
    Mutant(
        name="subscribers-before-the-holder",
        mistake="a holder learns of a loss after the subscribers have returned",
        engine=SubscribersBeforeTheHolder,
        kinds=frozenset({"slow_subscriber", "cut", "stall"}),
    ),
    Mutant(
        name="unkept-is-left",
        mistake="a lock that no thread can be started for is not given back",
        engine=UnkeptIsLeft,
        kinds=frozenset({"no_thread"}),
    ),
    Mutant(
        name="renews-by-the-ttl-only",
        mistake="a lease that was granted late is renewed as late as any other, and runs out before",
        engine=RenewsByTheTtlOnly,
        kinds=frozenset({"slow", "stall"}),
        budget=3000,
    ),
    Mutant(name="no-debts", mistake="what nobody waits for is never taken off the server", engine=NoDebts),
]
