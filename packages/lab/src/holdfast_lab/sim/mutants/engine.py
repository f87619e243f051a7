"""Engines and keepers with one bug each. Most are bugs of published libraries."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core import straight_path
from holdfast.core.engine import Engine
from holdfast.core.events import Attempt, Kind
from holdfast.core.keeper import Keeper
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec, Phase
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.errors import BackendError, OutcomeUnknown, ThreadStartError
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Caller
    from holdfast.core.straight_path import Begun

SimEngine = Engine[SimLease]


class _WithKeeper(SimEngine):
    """An engine with a mutant keeper."""

    keeper_type: type[Keeper] = Keeper

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._keeper = self.keeper_type(self)


class _WithBackend(SimEngine):
    """An engine that gets other replies than those of its backend."""

    def __init__(self, backend: Any, *arguments: Any) -> None:
        super().__init__(self.wrap(backend), *arguments)

    def wrap(self, backend: Any) -> Any:
        try_acquire = backend.try_acquire

        async def try_acquire_changed(claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
            return self.change_reply(await try_acquire(claim, queue=self.queues(queue=queue), deadline=deadline))

        backend.try_acquire = try_acquire_changed
        return backend

    def change_reply(self, outcome: Granted | Waiting) -> Granted | Waiting:
        return outcome

    def queues(self, *, queue: bool) -> bool:
        return queue


class LateReplyIsAGrant(_WithBackend):
    def change_reply(self, outcome: Granted | Waiting) -> Granted | Waiting:
        if isinstance(outcome, Granted):
            return outcome._replace(deadline=max(outcome.deadline, self.runtime.now() + 3.0))
        return outcome


class NoSecondPoll(_WithBackend):
    def change_reply(self, outcome: Granted | Waiting) -> Granted | Waiting:
        return outcome._replace(poll_after=1e6) if isinstance(outcome, Waiting) else outcome


class ZeroTimeoutQueues(_WithBackend):
    def queues(self, *, queue: bool) -> bool:
        return True


class LateRenewalRevivesLease(SimEngine):
    def renewed(self, lease: BaseLease, deadline: float, spec: LockSpec) -> None:
        if lease._phase is Phase.LOST:
            lease._phase = Phase.HELD
            lease._deadline = deadline
        super().renewed(lease, deadline, spec)

    def lose(self, lease: BaseLease, reason: str, outcome: str = "gone") -> None:
        super().lose(lease, reason, outcome)
        self._keeper.cancel(lease._claim)  # so that the lease can be revived


class LossNotReported(SimEngine):
    def _report_lost(self, lease: BaseLease, outcome: str = "gone") -> None:
        """Report nothing."""


class NonceDroppedBeforeRelease(SimEngine):
    def unconfirmed(self, lease: SimLease) -> None:
        lease._phase = Phase.UNCONFIRMED


class CancelledAcquireLeavesTicket(SimEngine):
    async def acquire(
        self, lock: BaseLock[SimLease], timeout: float | None, caller: Caller | None = None
    ) -> AcquireResult[SimLease]:
        before = set(self._keeper._schedule.pending)
        try:
            return await super().acquire(lock, timeout, caller)
        except Cancelled:
            for nonce in set(self._keeper._schedule.pending) - before:
                del self._keeper._schedule.pending[nonce]
            raise


class TimeoutRestartsAtWake(SimEngine):
    """As in kazoo's lock: the timeout starts again after every wake-up, even one for a poll."""

    _waits = 0

    async def _wait(self, claim: Claim, until: float) -> None:
        self._waits += 1
        await super()._wait(claim, until)

    async def acquire_new(
        self,
        lock: BaseLock[SimLease],
        caller: Caller,
        timeout: float | None,
        *,
        detached: bool = False,
        begun: Begun | None = None,
    ) -> AcquireResult[SimLease]:
        while True:
            before = self._waits
            result = await super().acquire_new(lock, caller, timeout, detached=detached, begun=begun)
            if result.lease is not None or not timeout or self._waits < before + 2:
                return result


class BusyWithoutAnswer(SimEngine):
    async def acquire_new(
        self,
        lock: BaseLock[SimLease],
        caller: Caller,
        timeout: float | None,
        *,
        detached: bool = False,
        begun: Begun | None = None,
    ) -> AcquireResult[SimLease]:
        try:
            return await super().acquire_new(lock, caller, timeout, detached=detached, begun=begun)
        except BackendError:
            return AcquireResult(None)


class TrustsTheServerOnly(SimEngine):
    """No local clock: a lease counts as held until the server reports otherwise."""

    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        class Endless(lease_type):  # type: ignore[misc, valid-type]  # its base is a variable
            __slots__ = ()

            @property
            def _stop_at(self) -> float:
                return 1e9

        super().__init__(backend, runtime, events, Endless)


class _RenewsOnce(Keeper):
    async def _renew(self, leases: Sequence[BaseLease], deadline: float) -> None:
        await super()._renew(leases, deadline)
        for lease in leases:
            lease._renew_at = 1e9


class _DropsPendingReleases(Keeper):
    def _postpone(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._schedule.pending.pop(claim.nonce, None)


class _NoPendingReleases(Keeper):
    def schedule(self, claim: Claim, after: float = 0.0, caller: weakref.ref[Caller] | None = None) -> None:
        """Schedule nothing."""


class _SingleAttempt(Keeper):
    def _limit(self) -> float:
        now, expiry = self._runtime.now(), self._schedule.next_expiry()
        limit = now + self._engine.io_timeout
        return limit if expiry is None else min(limit, max(expiry, now + 0.05))


class _TimerDoesIo(Keeper):
    async def _tick(self, number: int) -> bool:
        self._report_expired(self._runtime.now())
        due = self._due_for(number, self._runtime.now())
        if due is None:
            return await super()._tick(number)
        await self._do(due)
        return True


class _DropsReleasesWithoutThread(Keeper):
    def _ensure_timer(self, when: float) -> None:
        try:
            super()._ensure_timer(when)
        except ThreadStartError:
            self._schedule.pending.clear()
            raise


class SingleRenewalAttempt(_WithKeeper):
    keeper_type = _SingleAttempt


class LossReportedAfterReply(_WithKeeper):
    keeper_type = _TimerDoesIo


class SubscribersBeforeTheHolder(SimEngine):
    """The event first: a slow subscriber delays the report of the loss."""

    def _report_lost(self, lease: BaseLease, outcome: str = "gone") -> None:
        report = super()._report_lost
        self._report(lease, "lost", 0.0, lease._reason, outcome)
        self.runtime.notify(lambda: report(lease), here=False)


class TimeoutHasNoEvent(SimEngine):
    def _emit(self, attempt: Attempt, kind: Kind, *fields: Any, **named: Any) -> None:
        if kind != "not acquired" or "timeout" not in fields:
            super()._emit(attempt, kind, *fields, **named)


class UnansweredReleaseHasNoEvent(SimEngine):
    def _released(self, lease: BaseLease, outcome: str) -> None:
        if outcome != "unanswered":
            super()._released(lease, outcome)


class FailedLockAllHasNoEnd(SimEngine):
    def _released(self, lease: BaseLease, outcome: str) -> None:
        if outcome != "undone":
            super()._released(lease, outcome)


class LockWithoutKeeperNotReleased(_WithKeeper):
    """A lock that was granted when no keeper thread could be started is left to expire."""

    keeper_type = _DropsReleasesWithoutThread

    async def _withdraw(self, claim: Claim, give_up: float) -> None:
        if self._keeper._timer:
            await super()._withdraw(claim, give_up)


class RenewsByTheTtlOnly(SimEngine):
    """A lease with a late grant is still renewed a third of its ttl after it."""

    def _publish(self, lease: SimLease, lock: BaseLock[SimLease], caller: Caller) -> None:
        lease._renew_at = lease._since + lease.ttl / 3
        super()._publish(lease, lock, caller)


class RenewsOnce(_WithKeeper):
    keeper_type = _RenewsOnce


class PendingReleaseDropped(_WithKeeper):
    keeper_type = _DropsPendingReleases


class NoPendingReleases(_WithKeeper):
    keeper_type = _NoPendingReleases


def edited(function: Callable[..., Any], old: str, new: str) -> Any:
    """A function of the straight path with one fragment replaced, which must exist exactly once."""
    source = inspect.getsource(function)
    if source.count(old) != 1:
        raise AssertionError(f"{function.__name__} does not contain {old!r} exactly once")
    names = {**vars(straight_path), "OutcomeUnknown": OutcomeUnknown}
    exec(source.replace(old, new), names)  # noqa: S102  (the shipped text)
    return staticmethod(names[function.__name__])


class StraightDeadlineFromReply(SimEngine):
    acquire_straight = edited(straight_path.acquire_straight, "sent + path.lifetime", "runtime.now() + path.lifetime")


class StraightReleaseNotRepeated(SimEngine):
    release_straight = edited(
        straight_path.release_straight,
        "engine.unconfirmed(lease)",
        """engine._unpublish(lease, RELEASED)
            if engine.events.subscribers:
                engine._released(lease, "unanswered")""",
    )


class StraightInterruptLeavesTicket(SimEngine):
    acquire_straight = edited(
        straight_path.acquire_straight,
        "return await engine.acquire_new(lock, caller, timeout, begun=Begun(claim, sent, lease, error, blocked))",
        """engine._acquiring.pop(nonce, None)
        if claim.attempt is not None:
            engine._fail(claim.attempt, error)
        raise""",
    )


class StraightGrantWithoutReply(SimEngine):
    acquire_straight = edited(
        straight_path.acquire_straight,
        "            reply = await reply\n",
        """
            try:
                reply = await reply
            except OutcomeUnknown:
                reply = int(runtime.wall() * 1e6)
""",
    )


ENGINES = [
    Mutant(
        name="late-reply-is-a-grant",
        mistake="a reply after the lease's deadline counts as a grant",
        engine=LateReplyIsAGrant,
    ),
    Mutant(
        name="no-second-poll",
        mistake="a waiter does not poll: a lost notification leaves it waiting",
        engine=NoSecondPoll,
    ),
    Mutant(name="zero-timeout-queues", mistake="timeout=0 queues", engine=ZeroTimeoutQueues),
    Mutant(
        name="late-renewal-revives-lease",
        mistake="a renewal that succeeds after the loss makes the lease held again",
        engine=LateRenewalRevivesLease,
    ),
    Mutant(name="loss-not-reported", mistake="a loss is noticed but not reported", engine=LossNotReported),
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
        mistake="the timeout starts again after every wake-up",
        engine=TimeoutRestartsAtWake,
    ),
    Mutant(
        name="busy-without-answer",
        mistake="an acquire without an answer of the server reports that the lock is busy",
        engine=BusyWithoutAnswer,
    ),
    Mutant(
        name="trusts-the-server-only",
        mistake="a holder relies on the server to report a loss, and checks no clock",
        engine=TrustsTheServerOnly,
    ),
    Mutant(
        name="renews-once",
        mistake="a lease is renewed once, and not again",
        engine=RenewsOnce,
    ),
    Mutant(
        name="pending-release-dropped",
        mistake="a pending release is tried once and then dropped",
        engine=PendingReleaseDropped,
    ),
    Mutant(
        name="single-renewal-attempt",
        mistake="a renewal waits for its answer until the lease has ended, so one lost reply loses the lease",
        engine=SingleRenewalAttempt,
        kinds=frozenset({"lose_reply"}),
        budget=1000,
    ),
    Mutant(
        name="loss-reported-after-reply",
        mistake="the report of a loss waits until a request has its answer",
        engine=LossReportedAfterReply,
        kinds=frozenset({"lose_reply", "overrun"}),
        budget=1000,
    ),
    Mutant(
        name="subscribers-before-the-holder",
        mistake="a loss is reported to the holder after the subscribers have returned",
        engine=SubscribersBeforeTheHolder,
        kinds=frozenset({"slow_subscriber", "cut", "stall"}),
    ),
    Mutant(
        name="timeout-has-no-event",
        mistake="an acquire that times out has no last event, so it counts as waiting forever",
        engine=TimeoutHasNoEvent,
    ),
    Mutant(
        name="unanswered-release-has-no-event",
        mistake="a release without an answer is repeated, but has no event, so the lease counts as held forever",
        engine=UnansweredReleaseHasNoEvent,
        kinds=frozenset({"lose_reply", "cut"}),
    ),
    Mutant(
        name="failed-lock-all-has-no-end",
        mistake="a lock_all that fails has no events for the end of the leases that it had",
        engine=FailedLockAllHasNoEnd,
        workload="lock_all",
    ),
    Mutant(
        name="lock-without-keeper-not-released",
        mistake="a lock without a keeper thread is not released",
        engine=LockWithoutKeeperNotReleased,
        kinds=frozenset({"no_thread"}),
    ),
    Mutant(
        name="renews-by-the-ttl-only",
        mistake="a lease that was granted late is renewed too late, and expires before",
        engine=RenewsByTheTtlOnly,
        kinds=frozenset({"slow", "stall"}),
        budget=3000,
    ),
    Mutant(
        name="straight-deadline-from-reply",
        mistake="on the straight path, the ttl of a lease is counted from the reply, not from the request",
        backend="redis",
        engine=StraightDeadlineFromReply,
        workload="free",
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="straight-interrupt-leaves-ticket",
        mistake="an interrupt or an error on the straight path leaves the ticket on the server",
        backend="redis",
        engine=StraightInterruptLeavesTicket,
        workload="free",
        kinds=frozenset({"cancel", "slow"}),
    ),
    Mutant(
        name="straight-release-not-repeated",
        mistake="a release on the straight path that is interrupted or gets no answer is not repeated",
        backend="redis",
        engine=StraightReleaseNotRepeated,
        workload="free",
        kinds=frozenset({"cancel", "slow"}),
    ),
    Mutant(
        name="straight-grant-without-reply",
        mistake="on the straight path, a lease is published although the server has not answered",
        backend="redis",
        engine=StraightGrantWithoutReply,
        workload="free",
    ),
    Mutant(
        name="no-pending-releases",
        mistake="an unused ticket is never removed from the server",
        engine=NoPendingReleases,
    ),
]
