"""The engine: acquire, release, renew, lose. Written once, for every backend and every runtime.

The invariant under faults: wherever an exception is raised (an error, a cancellation, a KeyboardInterrupt), either the
caller has the lease, or the keeper has a pending release of the ticket. So every await is inside a `try` that schedules
the release, and the lease is created, registered and published inside the same `try`.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast

from holdfast.core.clock import before_delay, ttl_for
from holdfast.core.deadlocks import DeadlockDetector, deadlock_error, wait_json
from holdfast.core.events import Attempt, Events, Kind, logger, outcome_of
from holdfast.core.keeper import Keeper
from holdfast.core.leases import (
    HELD,
    LOST,
    RELEASED,
    RELEASING,
    STORE_GONE,
    TRANSFERRED,
    UNCONFIRMED,
    AcquireResult,
    BaseLease,
    LockSpec,
    Phase,
    next_renewal,
    result_of,
)
from holdfast.core.local_handover import LocalHandover
from holdfast.core.operators import Operators
from holdfast.core.ports import AdoptsLeases, PreparesRequests, ReportsGone, ReservesFences
from holdfast.core.requests import ObservedBackend
from holdfast.core.schedule import BATCH_MAX
from holdfast.core.stats import Stats, make_stats
from holdfast.core.straight_path import Begun, acquire_straight, prepare, release_straight
from holdfast.core.tickets import Claim, LeaseGone, Live, Waiting, may_have_happened, note_unanswered
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    NotHeld,
    OutcomeUnknown,
    QuorumError,
    ThreadStartError,
    UsageError,
    WouldDeadlock,
)

if TYPE_CHECKING:
    from holdfast.core.locks import BaseLock
    from holdfast.core.ports import Backend, Caller, Event, Runtime
    from holdfast.core.tickets import Granted
    from holdfast.guarantees import Guarantees

L = TypeVar("L", bound=BaseLease)

IO_TIMEOUT = 5.0  # seconds for one request
IO_TIMEOUT_MIN = 1.0  # the least time for a request, even if the caller gives up sooner
OUTAGE_PAUSE_MIN, OUTAGE_PAUSE_MAX = 0.05, 1.0

ITSELF = "this thread or task itself"
_serials = count()
_FOREVER = float("inf")


class Required(Protocol):
    """The guarantees that a program requires of its store."""

    def require(self, url: str, guarantees: Guarantees) -> None:
        """Raise ConfigurationError if the store has weaker ones."""


class Engine(Generic[L]):
    """One per client: its leases, its keeper and its backend."""

    detector_type = DeadlockDetector
    local_handover_type = LocalHandover
    acquire_straight: Callable[..., Coroutine[Any, Any, AcquireResult[Any]]] = staticmethod(acquire_straight)
    release_straight: Callable[..., Coroutine[Any, Any, None]] = staticmethod(release_straight)

    def __init__(
        self,
        backend: Backend,
        runtime: Runtime,
        events: Events,
        lease_type: type[L],
        required: Required | None = None,
    ) -> None:
        self.backend = backend
        self.runtime = runtime
        self.events = events
        self.io_timeout = IO_TIMEOUT
        self.mutex = runtime.mutex()
        self.closing = runtime.event()  # ends the waits of observers
        self._lease_type = lease_type
        self._required = required
        self._serial = next(_serials)
        self._process_info = runtime.process_info()
        self._process_id = runtime.process_id()
        self._last_info = ("", 0, False, "")  # cache of `_claim`: about, caller, detached, and the `info`
        self._leases: dict[str, weakref.ref[L]] = {}  # by nonce, in the order of the grants
        # By nonce: the tickets of running acquires, which the server may have, and the times at which they began.
        self._acquiring: dict[str, tuple[Claim, LockSpec, float]] = {}
        self._renewing: dict[object, list[Claim]] = {}  # by request: the tickets of renewals in flight
        self._renewal_ended: Event | None = None  # is set at the end of the next renewal, if a caller waits for it
        # Attempts whose leases were dropped, with the seconds held: their events are not delivered yet.
        self._dropped: deque[tuple[Attempt, float]] = deque()
        self.operators = Operators(self)
        self._keeper = Keeper(self)
        self.is_closed = False
        self._reports_gone = isinstance(backend, ReportsGone)
        if isinstance(backend, ReportsGone):
            backend.on_gone(self._store_gone)
        self.local: LocalHandover | None = None
        if isinstance(backend, ReservesFences) and backend.hands_over_locally:
            self.local = self.local_handover_type(self)
        self.observe_requests()

    def observe_requests(self) -> None:
        """Report the requests to the observers of the client, while it has any."""
        with self.mutex:  # several threads may change the observers
            backend = self.backend.inner if isinstance(self.backend, ObservedBackend) else self.backend
            if self.events.observers:
                backend = cast("Backend", ObservedBackend(backend, self.events.observers, self.runtime.now))
            self.backend = backend
            # For single tickets: `try_acquire`, `wait`, `release` and `renew`.
            self._tickets = self.backend if self.local is None else self.local
            self._release_held = self.backend.release if self.local is None else self.local.release_held
            # The straight path does not check the guarantees after each answer.
            is_straight = self._required is None and isinstance(self.backend, PreparesRequests)
            self._preparing = cast("PreparesRequests", self.backend) if is_straight else None

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    def acquire(
        self, lock: BaseLock[L], timeout: float | None, caller: Caller | None = None
    ) -> Coroutine[Any, Any, AcquireResult[L]]:
        """Acquire the lock, or wait for it until the timeout; for the calling thread or task, or for `caller`.

        Raises:
            WouldDeadlock: the caller holds the lock, and would wait for itself forever; or, with detect_deadlocks, it
                is the youngest of several callers that wait for each other.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server gave no answer, at first or when the time was up.
        """
        current = self.runtime.caller()
        preparing = self._preparing
        if preparing is not None and (caller is None or caller is current):
            kept = lock._kept.get(id(current))
            if kept is not None and not kept:  # the caller has acquired this lock before, and has released it
                if kept.prepared_by is not preparing:
                    kept.path, kept.prepared_by = prepare(self, preparing, lock, current), preparing
                path = kept.path
                if (
                    path is not None
                    and (not path.waiting or path.name in path.active)
                    and path.key not in current.leases
                    and self.events.trace is None
                ):
                    return self.acquire_straight(self, lock, current, kept, path, timeout)
        claimant = caller or current
        held = self.held_by(claimant, lock._spec) if claimant.leases else None
        if held is not None and claimant is not current and not lock._spec.reentrant:
            held = None  # this runs in a task of its own, which may wait until the calling task has released it
        if held is None:
            return self.acquire_new(lock, claimant, timeout, detached=claimant is not current)
        return self._reenter(held, lock, claimant, timeout)

    async def acquire_new(
        self,
        lock: BaseLock[L],
        caller: Caller,
        timeout: float | None,
        *,
        detached: bool = False,
        begun: Begun | None = None,
    ) -> AcquireResult[L]:
        """Acquire a lock that the caller does not hold. `detached`: this runs in another task than the caller's.

        `begun` is the part that the straight path has executed. Its outcome replaces that of the first request.
        """
        spec = lock._spec
        started = self.runtime.now() if begun is None else begun.started
        give_up = _FOREVER if timeout is None else started + timeout
        claim = self._claim(spec, caller, detached) if begun is None else begun.claim
        lease: L | None = None if begun is None else begun.lease
        first = None if begun is None else begun.outcome
        blocked: Waiting | None = None if begun is None else begun.blocked  # the last answer of the server
        outage: BackendError | None = None  # the reason why there is no newer answer
        pause = OUTAGE_PAUSE_MIN
        may_exist = blocked is not None  # the server may have this ticket
        detector: DeadlockDetector | None = None
        limit = started + self.io_timeout if timeout is None else self.request_deadline(give_up)
        has_margin = spec.lock_delay or spec.stop_margin
        try:
            if begun is not None:
                begun.is_taken = True
            self._acquiring[claim.nonce] = (claim, spec, started)
            if self.events.subscribers and claim.attempt is None:
                self._begin(claim, spec, started)
            # A loop without a condition: from Python 3.13 on, the handler below does not cover the backward jump of a
            # loop with one, and an interrupt there would leave the ticket on the server.
            while True:
                if self.is_closed and first is None:
                    break
                may_have_existed, may_exist = may_exist, True
                try:
                    if first is None:
                        outcome = await self._tickets.try_acquire(claim, queue=timeout != 0, deadline=limit)
                    elif isinstance(first, BaseException):
                        raised, first = first, None
                        raise raised
                    else:
                        outcome, first = first, None
                except BackendUnavailable as error:
                    may_exist, outage = may_have_existed, error
                    if blocked is None:
                        raise  # without a first answer the call does not wait for the server
                except ConfigurationError:
                    may_exist = may_have_existed  # refused, so nothing has changed
                    raise
                except QuorumError as error:
                    outage = error
                    if blocked is None:
                        raise
                except OutcomeUnknown as error:
                    if blocked is None and outage is not None:
                        raise
                    # A lost reply: the next round repeats the same request. It does so at once if the backend has not
                    # used up its time, for example on a connection that has vanished: the next connection is new.
                    is_first, outage = outage is None, error
                    if is_first and self.runtime.now() < limit:
                        continue
                else:
                    if self._required is not None:
                        await self._check_guarantees(self._required, claim, give_up)
                    if isinstance(outcome, Waiting):
                        if blocked is None and timeout != 0 and claim.attempt is not None:
                            self._emit(claim.attempt, "queued", reason=outcome.holder)
                        blocked, outage, pause = outcome, None, OUTAGE_PAUSE_MIN
                    elif (since := self.runtime.now()) < outcome.deadline - (spec.margin if has_margin else 0.0):
                        lease = self._lease_type(self, spec, claim, outcome, since, caller, lock)
                        self._publish(lease, lock, caller)
                        if self.is_closed:  # close() may have released the ticket before it was granted and published
                            await self._withdraw(claim, give_up)
                            raise UsageError("the client was closed during this call")
                        if claim.attempt is not None:
                            self._emit(claim.attempt, "acquired", lease.fence, since - started)
                        self._acquiring.pop(claim.nonce, None)
                        if spec.min_hold:
                            claim.kept_until = since + spec.min_hold
                        return result_of((lease, None, 0.0))
                    else:
                        # The answer arrived after the deadline, so it is no grant. Release the ticket and try again.
                        self._keeper.schedule(claim)
                        del self._acquiring[claim.nonce]
                        attempt = claim.attempt
                        claim, may_exist = self._claim(spec, caller, detached), False
                        claim.attempt = attempt
                        self._acquiring[claim.nonce] = (claim, spec, started)
                        outage = self._unavailable("its answer arrived after the deadline of the lease")
                now = self.runtime.now()
                if now >= give_up or lock._given_up or self.is_closed:
                    break
                if outage is not None:
                    if self.local is None:
                        await self.runtime.sleep(min(pause, give_up - now))
                    else:  # the active ticket may be one whose release is pending
                        await self._keeper.flush_without_timer(now + IO_TIMEOUT_MIN)
                        await self.local.pause(claim, now + min(pause, give_up - now))
                    pause = min(2 * pause, OUTAGE_PAUSE_MAX)
                elif blocked is not None:
                    until = min(give_up, now + blocked.poll_after)
                    if spec.detect_deadlocks and not detached:
                        if detector is None or detector.claim is not claim:
                            detector = self.detector_type(self, claim)
                        if cycle := await detector.find(give_up):
                            await self._withdraw(claim, give_up)
                            may_exist = False
                            raise deadlock_error(spec.name, cycle)
                        until = min(until, detector.next_walk)
                    await self._keeper.flush_without_timer(now + IO_TIMEOUT_MIN)
                    await self._wait(claim, until)
                limit = self.request_deadline(give_up)
            if self.is_closed:
                await self._withdraw(claim, give_up)
                raise UsageError("the client was closed during this call")
            if outage is not None:
                raise outage  # "busy" and "unavailable" are different results
            if timeout != 0:
                await self._withdraw(claim, give_up)
            self._acquiring.pop(claim.nonce, None)
            holder, waited = blocked.holder if blocked else None, self.runtime.now() - started
            if claim.attempt is not None:
                result = "busy" if timeout == 0 else "cancelled" if lock._given_up else "timeout"
                self._emit(claim.attempt, "not acquired", None, waited, holder, result)
            return AcquireResult(None, holder, waited)
        except BaseException as error:
            if lease is not None:
                self._unpublish(lease, RELEASED)
            if may_exist:
                self._keeper.schedule(claim)
            self._acquiring.pop(claim.nonce, None)
            self._fail(claim.attempt, error)
            if isinstance(error, ThreadStartError):
                await self._withdraw(claim, give_up)  # the keeper may have no thread
            raise

    async def try_acquire_many(
        self, locks: Sequence[BaseLock[L]], caller: Caller, give_up: float, leases: list[L]
    ) -> Waiting | None:
        """Acquire the first of these locks that are free, in one request, without a queue; append their leases.

        Returns the answer for the first lock that is busy; None if the store has granted all that it tried.
        """
        claims = {lock: self._claim(lock._spec, caller) for lock in locks}
        started = self.runtime.now()
        try:
            self._acquiring.update((claim.nonce, (claim, lock._spec, started)) for lock, claim in claims.items())
            requested = list(claims.values())
            outcomes = await self.backend.try_acquire_all(requested, deadline=self.request_deadline(give_up))
            if self.is_closed:  # close() may have released the tickets before they were granted
                with suppress(BackendError):
                    await self.backend.release(requested, deadline=self.request_deadline(give_up))
                raise UsageError("the client was closed during this call")
            if self._required is not None:
                self._required.require(self.backend.url, self.backend.guarantees)
            for lock, outcome in zip(locks, outcomes, strict=False):
                if isinstance(outcome, Waiting):
                    return outcome
                if self.events.subscribers:
                    self._begin(claims[lock], lock._spec, started)
                self._grant(lock, claims[lock], outcome, caller, leases, started)
                self._acquiring.pop(claims[lock].nonce, None)
                del claims[lock]  # last: after an interrupt, the handler and `finally` handle the claims in this dict
        except BaseException as error:
            for claim in claims.values():
                self._keeper.schedule(claim)
            for lock, claim in [*claims.items()][:1]:  # the first one that was not granted
                if self.events.subscribers and claim.attempt is None:
                    self._begin(claim, lock._spec, started)
                self._fail(claim.attempt, error)
            raise
        finally:
            for claim in claims.values():
                self._acquiring.pop(claim.nonce, None)
        return None

    def _grant(  # noqa: PLR0917
        self,
        lock: BaseLock[L],
        claim: Claim,
        granted: Granted,
        caller: Caller,
        leases: list[L],
        started: float,
        outcome: str = "",
    ) -> None:
        """Append the lease of a lock to `leases`, then publish it. `outcome` is the outcome of its event.

        Raises:
            OutcomeUnknown: the answer arrived after the deadline of the lease, so it is no grant.
            UsageError: the client was closed.
        """
        spec, since = lock._spec, self.runtime.now()
        if since >= granted.deadline - spec.margin:
            raise OutcomeUnknown(backend=self.backend.url, problem="its answer arrived after the deadline of the lease")
        leases.append(self._lease_type(self, spec, claim, granted, since, caller, lock))
        self._publish(leases[-1], lock, caller)
        if self.is_closed:
            raise UsageError("the client was closed during this call")
        if claim.attempt is not None:
            self._emit(claim.attempt, "acquired", granted.fence, since - started, outcome=outcome)
        if claim.min_hold:
            claim.kept_until = since + claim.min_hold

    async def _check_guarantees(self, required: Required, claim: Claim, give_up: float) -> None:
        """Called after each answer, because a store may report its guarantees only then, and they may change."""
        try:
            required.require(self.backend.url, self.backend.guarantees)
        except ConfigurationError:
            await self._withdraw(claim, give_up)
            raise

    async def _wait(self, claim: Claim, until: float) -> None:
        await self._tickets.wait(claim, until)

    def held_by(self, caller: Caller, spec: LockSpec) -> L | None:
        key = (self._serial, spec.name)
        ref = caller.leases.get(key)
        if ref is None:
            return None
        held: L | None = ref()
        if held is None:
            caller.leases.pop(key, None)
        return held if held is not None and held.held else None

    async def _reenter(self, held: L, lock: BaseLock[L], caller: Caller, timeout: float | None) -> AcquireResult[L]:
        """Acquire a lock that the caller holds: count the re-entry, if it is allowed.

        It is allowed if both leases are readers, or if both locks are reentrant and the held lease covers the new one.
        Otherwise a call with a timeout waits, because the held lease may end, or another thread may release it.
        """
        spec = lock._spec
        are_reads = not spec.exclusive and not held._spec.exclusive
        are_reentrant = spec.reentrant and held._spec.reentrant and (held._spec.exclusive or not spec.exclusive)
        if are_reads or are_reentrant:
            result: AcquireResult[L] | None = None
            try:
                with self.mutex:
                    if held._phase is HELD:
                        lock._keep(caller, held)
                        result = AcquireResult(held)
                        held._depth += 1
            except BaseException:
                if result is not None:  # an interrupt after it was counted: the caller has no chance to release it
                    held._depth -= 1
                raise
            if result is not None:
                return result
        if timeout == 0:
            self.not_acquired(spec, "busy", ITSELF)
            return AcquireResult(None, ITSELF)
        if timeout is not None and not spec.owner:  # a named owner would be granted a second lease at once
            return await self.acquire_new(lock, caller, timeout)
        if spec.exclusive and not held._spec.exclusive:
            reason = "a reader cannot become the writer; release the read lease first"
        elif held._spec.reentrant or spec.reentrant:
            reason = "not both were acquired with reentrant=True"
        else:
            reason = "waiting would never end; pass reentrant=True to count instead"
        self.not_acquired(spec, "refused", reason)
        raise WouldDeadlock(lock=spec.name, fence=held.fence, reason=reason)

    def _publish(self, lease: L, lock: BaseLock[L], caller: Caller) -> None:
        spec, ref = lease._spec, weakref.ref(lease)
        lease._phase = HELD
        if spec.exclusive or spec.limit is None:  # not for a permit, because a caller may hold several
            caller.leases[self._serial, spec.name] = ref
        lock._keep(caller, lease)
        self._leases[lease._claim.nonce] = ref  # atomic
        ends_at = lease._deadline - spec.stop_margin
        self._keeper.add(ref, lease._renew_at if spec.renew and lease._renew_at < ends_at else ends_at)
        if self._reports_gone and not self.backend.intact(lease._store):
            self.lose(lease, STORE_GONE)  # the store ended before this lease was published

    def _unpublish(self, lease: L, phase: Phase) -> None:
        with self.mutex:
            lease._phase = phase
            self._leases.pop(lease._claim.nonce, None)
        self._forget(lease)

    def _forget(self, lease: BaseLease) -> None:
        """Remove all references to this lease that the client has. Those of the program stay."""
        caller = lease._caller_ref()
        if caller is None:
            return
        key = (self._serial, lease._spec.name)
        ref = caller.leases.get(key)
        if ref is not None and ref() in (lease, None):
            caller.leases.pop(key, None)
        lock = lease._lock()
        if lock is not None and (kept := lock._kept.get(id(caller))):
            try:  # noqa: SIM105  (suppress() would cost half a microsecond at every release)
                kept.remove(lease)
            except ValueError:
                pass  # the thread of the caller has just removed it

    async def _withdraw(self, claim: Claim, give_up: float) -> None:
        try:
            (was_held,) = await self._tickets.release([claim], deadline=self.request_deadline(give_up))
            if isinstance(was_held, BackendError):
                raise was_held
        except BackendError:
            self._keeper.schedule(claim)  # the result of the call does not change: the lock was busy
        else:
            self._keeper.cancel(claim)

    def _claim(self, spec: LockSpec, caller: Caller, detached: bool = False) -> Claim:  # noqa: FBT001, FBT002
        runtime, delay = self.runtime, spec.lock_delay
        about, number, was_detached, info = self._last_info
        if about is not spec.about or number != caller.number or was_detached is not detached:
            detached_field = ', "detached": true' if detached else ""
            # A ticket that stays after its release does not show that its caller holds the lock.
            caller_field = "" if spec.min_hold else f', "caller": "{self._process_id}-{caller.number}"'
            client = f'"who": {self._process_info}{caller_field}{detached_field}'
            info = f"{{{client}, {spec.about}}}"
            self._last_info = (spec.about, caller.number, detached, info)
        if spec.detect_deadlocks:
            info = f"{info[:-1]}, {wait_json(self, caller)}}}"
        if self.events.trace is not None and (trace := self.events.trace()):
            info = f'{info[:-1]}, "trace": "{trace}"}}'
        claim = Claim(
            spec.name,
            runtime.nonce(),
            spec.ttl + delay,
            spec.limit,
            spec.exclusive,
            runtime.agent(),
            info,
            delay,
            spec.owner,
        )
        if spec.passable and self.local is not None:
            claim.passable = True
        if spec.detect_deadlocks:
            claim.number = caller.last_attempt
        if spec.min_hold:
            claim.min_hold, claim.ttl = spec.min_hold, spec.ticket_ttl
        return claim

    # ── release, renew, lose ─────────────────────────────────────────────────────────────────────────────────────

    def release(self, lease: L, *, after_body: bool = False) -> Coroutine[Any, Any, None]:
        """Release a lease; an inner release of a re-entered lease only counts.

        `after_body`: at the end of a `with` body. If this returns, the whole body ran under the lock. A release without
        an answer then raises nothing: the keeper repeats it, and the ttl is the backstop.

        Raises:
            NotHeld: it was released before.
            LockLost: it had ended or was broken before this release.
            BackendError: no answer; the keeper repeats the release, and the caller may do so too.
        """
        return self.release_straight(self, lease, after_body=after_body)

    async def release_any(self, lease: L, *, is_begun: bool) -> None:
        """Release a lease on the general path. `is_begun`: the straight path has begun, and could not finish it."""
        phase, now = lease._phase, self.runtime.now()
        if phase is LOST or (phase is HELD and now >= lease._deadline - lease._spec.stop_margin):
            self._end_lost(lease)
        if lease._depth > 1 and lease._phase is HELD:
            lease._depth -= 1  # no call follows: an interrupt is raised before this, or after the release
            return
        is_repeated = False
        try:
            with self.mutex:
                if lease._phase is HELD or lease._phase is UNCONFIRMED:
                    is_repeated = lease._phase is UNCONFIRMED
                    is_begun = True
                    lease._phase = RELEASING
            if not is_begun:
                if lease._phase is LOST:  # since the check above
                    self._end_lost(lease)
                raise NotHeld(lock=lease.name, reason=lease._reason or f"this lease was {lease._phase.value} already")
            claim = lease._claim
            release = self.send_releases if claim.kept_until else self._release_held
            was_held = (await release([claim], deadline=now + self.io_timeout))[0]
            if isinstance(was_held, BackendError):
                raise was_held
            if is_repeated or claim.is_final:
                self._keeper.cancel(claim)
            self._settle(lease, was_held=was_held or is_repeated)
        except BaseException:
            # The ticket is kept until the server has answered: the keeper repeats the release.
            if is_begun and lease._phase is RELEASING:
                self.unconfirmed(lease)
            raise
        if lease._phase is LOST:
            raise lease._loss()

    async def release_many(self, leases: Sequence[L]) -> None:
        """Release several leases in one request, except those that are lost or that another thread releases.

        Raises:
            BackendError: no answer for at least one; the keeper repeats its release.
        """
        begun: list[L] = []
        repeated: list[L] = []
        unanswered: BackendError | None = None
        try:
            for lease in leases:
                with self.mutex:
                    if lease._phase is HELD or lease._phase is UNCONFIRMED:
                        if lease._phase is UNCONFIRMED:
                            repeated.append(lease)
                        begun.append(lease)
                        lease._phase = RELEASING
            if not begun:
                return
            claims = [lease._claim for lease in begun]
            outcomes = await self.send_releases(claims, deadline=self.request_deadline())
            for lease, was_held in zip(begun, outcomes, strict=True):
                if isinstance(was_held, BackendError):
                    self.unconfirmed(lease)
                    unanswered = was_held
                else:
                    self._keeper.cancel(lease._claim)
                    self._settle(lease, was_held=was_held or lease in repeated)
        except BackendError:
            for lease in begun:
                self.unconfirmed(lease)
            raise
        if unanswered is not None:
            raise unanswered

    async def send_releases(
        self, claims: Sequence[Claim], *, deadline: float, backend: Backend | None = None
    ) -> Sequence[bool | BackendError]:
        """Release tickets. One whose min_hold is not over stays on the server until then, and is forgotten here.

        With `backend`, that one gets the requests: the process ends, so renewals in flight are not waited for.
        """
        tickets = self._tickets if backend is None else backend
        now = self.runtime.now()
        kept = [claim for claim in claims if claim.kept_until > now]
        for claim in claims:
            if claim.is_final and claim.kept_until <= now:
                claim.is_final = False
        if not kept:
            return await tickets.release(claims, deadline=deadline)
        outcomes = dict(zip(kept, await self._keep_to_the_end(kept, deadline, backend), strict=True))
        others = [claim for claim in claims if claim not in outcomes]
        if others:
            released: Sequence[bool | BackendError]
            try:
                released = await tickets.release(others, deadline=deadline)
            except BackendError as error:
                released = [error] * len(others)
            outcomes |= dict(zip(others, released, strict=True))
        return [outcomes[claim] for claim in claims]

    async def _keep_to_the_end(
        self, claims: Sequence[Claim], deadline: float, backend: Backend | None
    ) -> list[bool | BackendError]:
        """Renew tickets a last time, for the rest of their min_hold. Returns whether each was a lease until now."""

        def prepare(now: float) -> None:
            for claim in claims:
                claim.ttl, claim.is_final = ttl_for(max(0.0, claim.kept_until - now)), True

        try:
            if backend is None:
                await self._without_renewals(claims, prepare, deadline)
            else:
                prepare(self.runtime.now())
            outcomes = await (backend or self.backend).renew(claims, deadline=deadline)
        except BackendError as error:
            return [error] * len(claims)
        return [outcome if isinstance(outcome, BackendError) else isinstance(outcome, Live) for outcome in outcomes]

    def _settle(self, lease: L, *, was_held: bool) -> None:
        """The server has answered a release: the lease is released, or had ended before and is lost."""
        if not was_held:
            lease._reason = LeaseGone().reason
            self._unpublish(lease, LOST)
            self._report_lost(lease)
            return
        with self.mutex:
            lease._phase = RELEASED
            self._leases.pop(lease._claim.nonce, None)
        self._forget(lease)
        if lease._lost_event is not None or self.events.subscribers:  # saves a call in most releases
            self._report_released(lease, "released")

    def end(self, lease: L) -> None:
        """End a lease that no code works under, and schedule its release. Releasing a ticket twice does no harm."""
        lease._claim.kept_until = 0.0
        if self._end(lease, "", "undone") or lease._phase is RELEASED:
            self._keeper.schedule(lease._claim)

    def _end(self, lease: L, reason: str, outcome: str) -> bool:
        """End a lease without a request. Returns False if it had ended before."""
        with self.mutex:
            if lease._phase is not HELD:
                return False
            lease._phase, lease._reason = RELEASED, reason
        self._unpublish(lease, RELEASED)
        self._report_released(lease, outcome)
        return True

    async def flush(self, give_up: float) -> None:
        """Try the pending releases once, now. The keeper repeats those without an answer."""
        await self._keeper.flush(self.request_deadline(give_up))

    def unconfirmed(self, lease: L) -> None:
        """The body has ended, but the server has not confirmed the release: the keeper repeats it."""
        lease._phase = UNCONFIRMED
        self._keeper.schedule(lease._claim)
        self._report_released(lease, "unanswered")

    def _end_lost(self, lease: L) -> NoReturn:
        self.expire(lease)  # its deadline may have passed before the timer reported it
        with self.mutex:
            is_inner = lease._depth > 1
            lease._depth -= is_inner
        if not is_inner:
            self.end_lost_body(lease)
        raise lease._loss()

    def end_lost_body(self, lease: L) -> None:
        """The body of a lost lease has ended, so the release does not wait for the deadline of a stop margin."""
        self._forget(lease)
        self._keeper.schedule(lease._claim, after=self._delayed(lease))

    async def transfer(self, lease: L, within: float) -> tuple[str, float]:
        """End the lease here and leave a ticket for `within` seconds.

        A new ticket replaces the ticket of the lease, so a request of the lease that arrives late, such as a renewal,
        does not change how long the new ticket stays. Returns its nonce, and the remaining seconds of min_hold.

        Raises:
            UsageError: it was acquired again by re-entry and not released as often.
            NotHeld, LockLost: it is not held.
            BackendError: no answer. The lease is over, no text exists, and the keeper releases both tickets.
        """
        lease.check()
        claim, backend = lease._claim, self._adopting_backend()
        min_hold_left = max(0.0, claim.kept_until - self.runtime.now())
        successor = self._unheld_claim(lease, max(within, min_hold_left))
        is_begun = False
        try:
            with self.mutex:
                if lease._phase is HELD and lease._depth == 1:
                    is_begun = True
                    lease._phase = RELEASING
            if not is_begun:
                lease.check()
                raise UsageError(f"the lease of {lease.name!r} was acquired again by re-entry: release the inner ones")
            ticket = claim.server or claim
            outcome = await backend.adopt(ticket.nonce, successor, deadline=self.request_deadline())
            if self.local is not None:
                self.local.end(claim)  # its ticket does not exist any more
            if isinstance(outcome, LeaseGone):
                self._settle(lease, was_held=False)
                raise lease._loss()
            self._unpublish(lease, TRANSFERRED)
            if ticket.unanswered:
                self._keeper.schedule(ticket)  # so that its unanswered request, if it arrives late, is not granted
            self._report_released(lease, "transferred")
        except BaseException as error:
            if is_begun and may_have_happened(error):
                successor.unanswered = True
                self._keeper.schedule(successor)
            if is_begun and lease._phase is RELEASING:
                self.unconfirmed(lease)
            raise
        return successor.nonce, min_hold_left

    def _unheld_claim(self, lease: L, seconds: float) -> Claim:
        """A ticket for the lock of this lease that stays for `seconds`. No caller holds it, so its info names none."""
        spec, info = lease._spec, f'{{"who": {self._process_info}, {lease._spec.about}}}'
        claim = Claim(
            spec.name, self.runtime.nonce(), ttl_for(seconds), spec.limit, spec.exclusive, self.runtime.agent(), info
        )
        claim.min_hold, claim.kept_until = seconds, lease._claim.kept_until
        return claim

    def _adopting_backend(self) -> AdoptsLeases:
        if not isinstance(self.backend, AdoptsLeases):
            raise self._unavailable("it has no leases that move")
        return self.backend

    async def adopt(self, lock: BaseLock[L], nonce: str, min_hold_left: float) -> L:
        """Take over the lease with this nonce that another process has transferred, for the calling thread or task.

        Raises:
            NotHeld: there is no such lease any more.
            BackendError: no answer. If the lease was adopted, the keeper releases it.
        """
        spec, caller, backend = lock._spec, self.runtime.caller(), self._adopting_backend()
        started = self.runtime.now()
        claim = self._claim(spec, caller)
        claim.min_hold, claim.ttl = min_hold_left, max(claim.ttl, ttl_for(min_hold_left))
        leases: list[L] = []  # the adopted one, once it exists
        try:
            self._acquiring[claim.nonce] = (claim, spec, started)
            if self.events.subscribers:
                self._begin(claim, spec, started)
            outcome = await self._send_adopt(backend, nonce, claim, started)
            if isinstance(outcome, LeaseGone):
                reason = "no such lease waits: it was adopted before, its time is over, or it is of another store"
                raise NotHeld(lock=spec.name, reason=reason)
            self._grant(lock, claim, outcome, caller, leases, started, "adopted")
            self._acquiring.pop(claim.nonce, None)
        except BaseException as error:
            if leases:
                self._unpublish(leases[0], RELEASED)
            note_unanswered([claim], error)
            if not isinstance(error, NotHeld | BackendUnavailable | ConfigurationError) or claim.unanswered:
                self._keeper.schedule(claim)
            self._acquiring.pop(claim.nonce, None)
            self._fail(claim.attempt, error)
            raise
        return leases[0]

    async def _send_adopt(self, backend: AdoptsLeases, nonce: str, claim: Claim, started: float) -> Granted | LeaseGone:
        """Request an adoption until it is answered or io_timeout is over."""
        pause = OUTAGE_PAUSE_MIN
        while True:
            if self.is_closed:
                raise UsageError("the client was closed during this call")
            try:
                return await backend.adopt(nonce, claim, deadline=self.request_deadline())
            except OutcomeUnknown:  # a repeat with the same nonce gives the same lease
                claim.unanswered = True
                if self.runtime.now() >= started + self.io_timeout:
                    raise
                await self.runtime.sleep(pause)
                pause = min(2 * pause, OUTAGE_PAUSE_MAX)

    def interrupted_exit(self, lease: L) -> None:
        """A KeyboardInterrupt hit `__exit__`. The body has ended, so a lease that is still held is released."""
        if lease._phase is HELD:
            if lease._depth > 1:
                lease._depth -= 1
            else:
                self.unconfirmed(lease)

    async def renew(self, *leases: L, ttl: float | None = None) -> None:
        """Renew these leases now. With `ttl`, they have this ttl from now on.

        Raises:
            LockLost, NotHeld: a lease is not held.
            BackendError: no answer; the old deadline stays, or with `ttl` the earlier of the old one and the new one.
        """
        for lease in leases:
            lease.check()
        deadline = self.request_deadline()
        old_specs = [lease._spec for lease in leases]
        if ttl is not None:
            new_specs = [spec._replace(ttl=max(ttl, spec.min_hold)) for spec in old_specs]
            await self._change_ttl(leases, new_specs, deadline)
        for lease in leases:
            lease.check()
        specs = [lease._spec for lease in leases]
        try:
            outcomes = await self.send_renewals(leases, deadline)
        except ConfigurationError:  # refused, so nothing was sent
            if ttl is not None:
                await self._change_ttl(leases, old_specs, deadline)
            raise
        self.note_renewals(leases, specs, outcomes)
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, BackendError):
                raise outcome
            lease.check()

    async def send_renewals(
        self, leases: Sequence[BaseLease], deadline: float
    ) -> Sequence[Live | LeaseGone | BackendError]:
        """Renew leases in one request. An error is the result of each of them."""
        claims, this_call = [lease._claim for lease in leases], object()
        outcomes: Sequence[Live | LeaseGone | BackendError] = ()
        try:
            with self.mutex:
                self._renewing[this_call] = claims
            try:
                outcomes = await self._tickets.renew(claims, deadline=deadline)
            except BackendError as error:
                outcomes = [error] * len(claims)
            except HoldfastError:  # refused, so nothing was sent
                claims = []
                raise
        finally:
            for number, claim in enumerate(claims):
                if not outcomes or _may_be_executed(outcomes[number]):
                    claim.unanswered_ttl = min(claim.unanswered_ttl, claim.ttl)
            with self.mutex:
                self._renewing.pop(this_call, None)
                ended, self._renewal_ended = self._renewal_ended, None
            if ended is not None:
                ended.set()
        return outcomes

    async def _change_ttl(self, leases: Sequence[BaseLease], specs: Sequence[LockSpec], deadline: float) -> None:
        """Change the ttl of each lease to the ttl of its spec, before a renewal that sends it.

        A shorter ttl counts from now on, because the server may execute the renewal even if no answer arrives. While a
        renewal is in flight nothing is changed: the server could execute it after one with a longer ttl.

        Raises:
            BackendUnavailable: a renewal was in flight until the deadline.
        """

        def change(now: float) -> None:
            for lease, spec in zip(leases, specs, strict=True):
                lease._change_ttl(spec, now)

        await self._without_renewals([lease._claim for lease in leases], change, deadline)
        for lease in leases:
            self._keeper.move(lease)

    async def _without_renewals(
        self, claims: Sequence[Claim], change: Callable[[float], None], deadline: float
    ) -> None:
        """Call `change` with the time, under the mutex, when no renewal of these tickets is in flight.

        Raises:
            BackendUnavailable: a renewal was in flight until the deadline.
        """
        nonces = [claim.nonce for claim in claims]
        while True:
            with self.mutex:
                if {claim.nonce for renewed in self._renewing.values() for claim in renewed}.isdisjoint(nonces):
                    change(self.runtime.now())
                    return
                ended = self._renewal_ended = self._renewal_ended or self.runtime.event()
            if not await ended.wait(deadline):
                raise self._unavailable("an earlier renewal of the lease has not ended")

    def note_renewals(
        self,
        leases: Sequence[BaseLease],
        specs: Sequence[LockSpec],
        outcomes: Sequence[Live | LeaseGone | BackendError],
    ) -> None:
        """Apply the results of `send_renewals` to the leases. `specs` are those that they had when it was called."""
        for lease, spec, outcome in zip(leases, specs, outcomes, strict=True):
            if isinstance(outcome, LeaseGone):
                self.lose(lease, outcome.reason)
            elif isinstance(outcome, BackendError):
                self.renewal_failed(lease, outcome)
            else:
                self.renewed(lease, outcome.deadline, spec)

    def renewed(self, lease: BaseLease, deadline: float, spec: LockSpec) -> None:
        """The server has renewed the lease with the ttl of this spec. Never shortens and never revives it."""
        now = self.runtime.now()
        with self.mutex:
            if lease._phase is not HELD or now >= lease._deadline - spec.stop_margin:
                return  # lost or released since then: the loss or the release handles the ticket
            if lease._spec is not spec:
                return  # its ttl was changed since then, and this deadline belongs to another one
            claim = lease._claim
            if claim.unanswered_ttl < claim.ttl:  # the server may still execute a renewal with that ttl, after this one
                deadline = before_delay(deadline, claim.ttl - claim.unanswered_ttl)
            if spec.lock_delay:
                deadline = before_delay(deadline, spec.lock_delay)
            seconds_left = lease._deadline - now
            lease._deadline = max(lease._deadline, lease._bounded(deadline))
            lease._renew_at = next_renewal(now, deadline)
        if self.events.subscribers:
            self._report(lease, "renewed", seconds_left)

    def renewal_failed(self, lease: BaseLease, error: BackendError) -> None:
        """A renewal got no answer. The keeper tries again until the deadline."""
        if self.events.subscribers and lease._phase is HELD:
            seconds_left = lease._deadline - self.runtime.now()
            self._report(lease, "renewal failed", seconds_left, str(error), type(error).__name__)

    def expire(self, lease: BaseLease) -> None:
        """The deadline of the lease has passed, or its max_hold is reached."""
        self.lose(lease, lease._expiry_reason(), lease._expiry_outcome())

    def lose(self, lease: BaseLease, reason: str, outcome: str = "gone") -> None:
        """End the lease as lost. A loss is reported exactly once."""
        if self.runtime.run_in_loop(lambda: self.lose(lease, reason, outcome)):
            return
        with self.mutex:
            if lease._phase is not HELD:
                return
            spec = lease._spec
            if spec.stop_margin or spec.lock_delay:  # a loss before the deadline starts both now
                lease._deadline = min(lease._deadline, self.runtime.now() + spec.stop_margin)
            lease._phase = LOST
            lease._reason = reason
            self._leases.pop(lease._claim.nonce, None)
        # Release it, but not before the deadline if there is a stop margin, which is time for the body, and not before
        # the delay of the lock is over.
        after = self._delayed(lease) or (lease._deadline if spec.stop_margin else 0)
        self._keeper.schedule(lease._claim, after=after, caller=lease._caller_ref)
        self._report_lost(lease, outcome)

    def _store_gone(self, store: Hashable, reason: str) -> None:
        """All leases of this store are lost. Report it now, not at their next renewal."""
        for lease in self._existing_leases():
            if lease._store is store:
                self.lose(lease, reason)

    def _delayed(self, lease: BaseLease) -> float:
        """The time until which a lost lease keeps the lock taken; 0 if it does not."""
        delay = lease._spec.lock_delay
        return lease._deadline + delay if delay else 0.0

    def _report_released(self, lease: BaseLease, outcome: str) -> None:
        """Wake `wait_lost`, and report the event of a lease that ended without a loss."""
        if lease._lost_event is not None:
            lease._lost_event.set()  # ends `wait_lost`
        if self.events.subscribers:
            self._released(lease, outcome)

    def _report_lost(self, lease: BaseLease, outcome: str = "gone") -> None:
        """Report to the holder first: event, cancellation, callback. Subscribers and log handlers are called later."""
        held_for = self.runtime.now() - lease._since
        if lease._lost_event is not None:
            lease._lost_event.set()
        if lease._hook is not None:
            lease._hook()
        on_lost = lease._spec.on_lost
        if callable(on_lost):
            self.runtime.call(lambda: on_lost(lease))
        if self.events.subscribers:
            self._report(lease, "lost", held_for, lease._reason, outcome)
        logger().warning(
            "lock %r (fence %d) was lost after %.3f s: %s", lease.name, lease.fence, held_for, lease._reason
        )

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, claim: Claim, spec: LockSpec, started: float) -> None:
        attempt = claim.attempt = self.events.new_attempt(spec, started)
        self.events.emit(attempt, attempt.fields, self.runtime, here=True)

    def _emit(  # noqa: PLR0917
        self,
        attempt: Attempt,
        kind: Kind,
        fence: int | None = None,
        seconds: float | None = None,
        reason: str | None = None,
        outcome: str = "",
        *,
        here: bool = True,
    ) -> None:
        """Deliver an event; `here` as in `Runtime.notify`. A call may wait for the subscribers."""
        event = attempt.event(kind, fence, seconds, reason, outcome)
        self.events.emit(attempt, event, self.runtime, here=here)

    def _fail(self, attempt: Attempt | None, error: BaseException) -> None:
        """Deliver the event of an attempt that ended with this error. None: it has no events."""
        if attempt is not None:
            waited = self.runtime.now() - attempt.started
            self._emit(attempt, "not acquired", None, waited, str(error) or None, outcome_of(error))

    def not_acquired(self, spec: LockSpec, outcome: str, reason: str | None, waited: float = 0.0) -> None:
        """Deliver the events of an attempt that has already failed."""
        if self.events.subscribers:
            attempt = self.events.new_attempt(spec, self.runtime.now() - waited)
            self.events.emit(attempt, attempt.fields, self.runtime, here=True)
            self._emit(attempt, "not acquired", None, waited, reason, outcome)

    def skipped(self, spec: LockSpec, outcome: str) -> None:
        """A call of a decorated function or of `once` did not run."""
        if self.events.subscribers:
            self._emit(self.events.new_attempt(spec, self.runtime.now()), "skipped", outcome=outcome)

    def started(self, lease: BaseLease) -> None:
        """The body of a call of `once` begins."""
        if self.events.subscribers:
            self._emit(self._attempt_of(lease), "started", lease.fence)

    def _released(self, lease: BaseLease, outcome: str) -> None:
        held_for = self.runtime.now() - lease._since
        self._emit(self._attempt_of(lease), "released", lease.fence, held_for, lease._reason or None, outcome)

    def _report(
        self,
        lease: BaseLease,
        kind: Kind,
        seconds: float | None = None,
        reason: str | None = None,
        outcome: str = "",
    ) -> None:
        """Deliver an event of the keeper, which must not wait for the subscribers."""
        self._emit(self._attempt_of(lease), kind, lease.fence, seconds, reason, outcome, here=False)

    def _attempt_of(self, lease: BaseLease) -> Attempt:
        attempt = lease._claim.attempt
        if attempt is None:  # acquired before anyone subscribed
            attempt = lease._claim.attempt = self.events.new_attempt(lease._spec, lease._since, lease.fence)
        return attempt

    def report_dropped(self) -> None:
        """Deliver the events of leases that were dropped, which a finaliser may not do."""
        while self._dropped:
            attempt, held_for = self._dropped.popleft()
            self._emit(attempt, "released", attempt.fence, held_for, None, "dropped", here=False)

    async def wait_lost(self, lease: BaseLease, timeout: float | None) -> bool:
        """Wait for the loss of a lease: True at a loss, False after the timeout or a release."""
        until = None if timeout is None else self.runtime.now() + timeout
        while not lease.lost:
            with self.mutex:
                if lease._phase is not HELD:
                    return False
                if lease._lost_event is None:
                    lease._lost_event = self.runtime.event()
                event = lease._lost_event
            # The keeper sets the event at the deadline. The clock is a second, independent check.
            await event.wait(lease._stop_at if until is None else min(until, lease._stop_at))
            if until is not None and self.runtime.now() >= until:
                return lease.lost
        return True

    def revoke_requested(self, lease: BaseLease) -> None:
        """The release of this lease is requested. Reported once."""
        with self.mutex:
            if lease._phase is not HELD or lease._revoke_requested:
                return
            lease._revoke_requested = True
        on_revoke = lease._spec.on_revoke
        if on_revoke is not None:
            self.runtime.call(lambda: on_revoke(lease))
        if self.events.subscribers:
            self._report(lease, "revoke requested")

    def _existing_leases(self) -> list[L]:
        """The leases that the program has not dropped. The copy is atomic, so no mutex is needed."""
        return [lease for ref in list(self._leases.values()) if (lease := ref()) is not None]

    def stats(self) -> Stats:
        """The present state. The copies are atomic, so no mutex is needed."""
        group_of = self.events.group_of
        return make_stats(
            [(group_of(lease._spec), lease) for lease in self._existing_leases() if lease.held],
            [
                (group_of(spec), started)
                for claim, spec, started in list(self._acquiring.values())
                if claim.nonce not in self._leases
            ],
            self._keeper.pending_count,
            self.runtime.now(),
        )

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Release all leases and tickets, as far as the server answers; then close the backend."""
        self.is_closed = True
        self.closing.set()
        for lease in self._existing_leases():
            if self._end(lease, "its client was closed", "closed"):
                self._keeper.schedule(lease._claim)
        for claim, _, _ in list(self._acquiring.values()):
            if claim.path is not None:  # its request may arrive after the release, as one without an answer may
                claim.unanswered = True
            self._keeper.schedule(claim)
        await self._keeper.flush(self.request_deadline(), lambda _: True)
        self._keeper.stop()
        self.report_dropped()
        await self.runtime.join()
        await self.backend.close()

    @property
    def is_idle(self) -> bool:
        """No lease is held, requested or pending."""
        return not self._leases and not self._acquiring and not self._keeper.pending_count

    def end_leases(self) -> list[Claim]:
        """At the end of the process: end the leases whose thread or task has ended, and return the tickets to release.

        No request is made here, so that no code believes that it holds a lease while `release_ended` releases it. The
        leases of other threads are not touched: their code may still run.
        """
        if self.is_closed:
            return []
        reason = "the process ends, and no code can run under this lease"
        leases = [lease for lease in self._existing_leases() if self.runtime.has_ended(lease._caller_ref())]
        ended = [lease._claim for lease in leases if self._end(lease, reason, "closed")]
        ended += self._keeper.pending_releases(self.runtime.has_ended)
        return ended if self.local is None else self.local.tickets_of(ended)

    async def release_ended(self, claims: Sequence[Claim], deadline: float, backend: Backend | None = None) -> int:
        """Release tickets of `end_leases`, on `backend` if it is given. Returns how many releases got no answer.

        Each is tried once. The ttl ends the others.
        """
        unanswered = 0
        for start in range(0, len(claims), BATCH_MAX):
            batch = claims[start : start + BATCH_MAX]
            try:
                outcomes = await self.send_releases(batch, deadline=deadline, backend=backend or self.backend)
            except HoldfastError as error:
                logger().info("%d lease(s) were not released at the end of the process: %s", len(batch), error)
                unanswered += len(batch)
            else:
                unanswered += sum(isinstance(outcome, BackendError) for outcome in outcomes)
        return unanswered

    def abandon(self, reason: str) -> None:
        """In a forked child: the leases belong to the parent, and its connections are not used.

        The old mutex is replaced and not locked: another thread of the parent may have held it at the fork.
        """
        for lease in self._existing_leases():
            if lease._phase is not RELEASED:
                lease._phase, lease._reason = LOST, reason
        self.mutex = self.runtime.mutex()
        self._keeper.abandon(self.mutex)
        if self.local is not None:
            self.local.abandon()
        self.backend.abandon()

    def dropped(self, lease: BaseLease) -> None:
        """The program dropped a lease without a release. Weak references to it are dead by now."""
        self._leases.pop(lease._claim.nonce, None)
        if lease._phase is HELD:
            if self.events.subscribers:
                self._dropped.append((self._attempt_of(lease), self.runtime.now() - lease._since))
            self._keeper.drop(lease._claim, lease._deadline + lease._spec.lock_delay, lease._caller_ref)
            if lease.lost:
                return
            warnings.warn(
                f"the lease of lock {lease.name!r} (fence {lease.fence}) was dropped without release(): it is renewed "
                f"no more and keeps others out until its ttl of {lease.ttl:g} s is over",
                ResourceWarning,
                stacklevel=3,
            )

    def request_deadline(self, give_up: float = _FOREVER) -> float:
        """The deadline of a request that begins now, for a caller that gives up at `give_up`."""
        now = self.runtime.now()
        return min(now + self.io_timeout, max(give_up, now + IO_TIMEOUT_MIN))

    def _unavailable(self, problem: str) -> BackendUnavailable:
        return BackendUnavailable(backend=self.backend.url, problem=problem)


def _may_be_executed(outcome: object) -> bool:
    """A renewal with this result got no answer, and the server may still execute it."""
    return isinstance(outcome, BackendError) and not isinstance(outcome, BackendUnavailable)
