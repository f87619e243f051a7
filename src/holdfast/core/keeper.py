"""The keeper: one per client. It reports losses at their deadline, renews leases, and repeats releases.

A *pending release* is a ticket that must be released although no caller waits for the answer: after a cancelled, failed
or late acquire, after a release without an answer, and after a loss. The keeper repeats it until the server answers.

Two kinds of background threads or tasks share the work:

    timer     sleeps until work is due. It reports losses itself and leaves the rest to a worker. It never calls a port,
              a log handler or a subscriber, so nothing that blocks there can delay the report of a loss.
    worker    renews leases and repeats releases. It may block past its deadline, for example in a name look-up. If a
              renewal is due while every worker is busy, the timer starts another worker, up to `workers_max`.

Both start when they are first needed and end after a while without work. Acquiring or releasing a lock wakes neither. A
request ends half-way to the earliest deadline of any lease, so that one lost reply costs no lease.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.events import logger
from holdfast.core.leases import BaseLease
from holdfast.core.ports import ReleasesLater
from holdfast.core.schedule import BATCH_MAX, RETRY_MAX, RETRY_MIN, PendingRelease, Schedule
from holdfast.core.tickets import Claim
from holdfast.errors import BackendError, ConfigurationError, HoldfastError, ThreadStartError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.ports import Caller

UNSCHEDULED_MAX = 1000  # leases that are in no heap yet
IDLE_MAX = 10.0  # seconds without work before timer and workers end
LAST_CHANCE = 1.0  # seconds for the pending releases when the timer is cancelled
_FOREVER = float("inf")


class _Due(NamedTuple):
    """Work that is due now."""

    renewals: Sequence[BaseLease]
    releases: Sequence[Claim]


def _is_gone(caller: Caller | None) -> bool:
    """The thread or task does not exist any more."""
    return caller is None


class Keeper:
    """All state is guarded by the engine's mutex, which is never held across a request.

    A signal handler or a finaliser may use the client inside a section. It then only adds to the schedule and makes
    `_wakes_at` earlier: every section stays correct if that happens at any of its calls.
    """

    workers_max = 4  # one, and its substitutes while it waits for a server

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._mutex = engine.mutex
        self._schedule = Schedule()
        self._numbers = count(1)  # of timers and workers
        self._timer = 0  # the number of the running timer; 0: none
        self._wakes_at = 0.0  # the time at which the timer wakes
        self._timer_wakeup = self._runtime.event()  # wakes the timer
        self._workers: dict[int, bool] = {}  # number -> whether it is busy
        self._worker_wakeup = self._runtime.event()  # wakes an idle worker
        self._stopped = False

    def add(self, ref: weakref.ref[Any], when: float) -> None:
        """Keep a new lease until it is released or lost. Its first renewal is due then, or its end if that is earlier.

        Raises:
            ThreadStartError: no timer runs, and none can be started.
        """
        with self._mutex:
            new = self._schedule.unscheduled
            new.append(ref)
            if self._timer and when >= self._wakes_at and len(new) < UNSCHEDULED_MAX:
                return  # nearly always
        self._ensure_timer(when if len(new) < UNSCHEDULED_MAX else 0.0)

    def move(self, lease: BaseLease) -> None:
        """The lease may end earlier now, because its ttl was changed.

        Raises:
            ThreadStartError: no timer runs, and none can be started.
        """
        with self._mutex:
            self._schedule.move(lease)
        self._ensure_timer(min(lease._renew_at, lease._stop_at))

    def schedule(self, claim: Claim, after: float = 0.0, caller: weakref.ref[Caller] | None = None) -> None:
        """Release this ticket, from `after` on, until the server answers. The caller's code may run until `after`."""
        when = max(after, self._runtime.now())
        with self._mutex:
            self._schedule.pending[claim.nonce] = PendingRelease(claim, when, caller=caller)
        try:
            self._ensure_timer(when)
        except ThreadStartError as error:  # it stays pending: the next use of the client and close() try again
            logger().warning("the release of %r has to wait: %s", claim.name, error)
            backend = self._engine.backend
            if isinstance(backend, ReleasesLater):
                backend.release_later(claim)

    def drop(self, claim: Claim, deadline: float, caller: weakref.ref[Caller]) -> None:
        """Release this ticket after its lease has expired: where tickets share a session it does not expire by itself.

        The garbage collector calls this on any thread, so the ticket is only queued here. The timer reads the queue
        when it wakes next, which is no later than the end of the lease.
        """
        self._schedule.dropped.append(PendingRelease(claim, deadline, caller=caller))

    def cancel(self, claim: Claim) -> None:
        """The ticket was released.

        A ticket that stays for its min_hold is released again after that time if one of its requests has no answer. The
        server could execute that request after the ticket has expired, and grant the lock to no holder.
        """
        if claim.unanswered and claim.is_final:
            self.schedule(claim, after=claim.kept_until)
            return
        with self._mutex:
            self._schedule.pending.pop(claim.nonce, None)

    async def flush(self, deadline: float, has_ended: Callable[[Caller | None], bool] = _is_gone) -> None:
        """Send every pending release once, now. Stops after the first batch with a release that gets no answer."""
        claims = self.pending_releases(has_ended)
        for start in range(0, len(claims), BATCH_MAX):
            if not await self._flush(claims[start : start + BATCH_MAX], deadline):
                return

    async def flush_without_timer(self, deadline: float) -> None:
        """Send the pending releases if no timer runs, because its thread could not be started.

        A waiter calls this before it waits. On a store where tickets share a lease or a session, the waiter would
        otherwise keep a ticket of its own client alive that blocks it.
        """
        if not self._schedule.pending or self._timer or self._stopped:
            return
        try:
            self._ensure_timer(self._runtime.now())
        except ThreadStartError:
            await self.flush(deadline)

    @property
    def pending_count(self) -> int:
        """The number of pending releases."""
        return len(self._schedule.pending) + len(self._schedule.dropped)

    def pending_releases(self, has_ended: Callable[[Caller | None], bool]) -> list[Claim]:
        """The pending releases that may be sent now: no code runs under their leases, and no delay keeps them."""
        with self._mutex:
            self._schedule.add_dropped()
            releases = list(self._schedule.pending.values())
        now = self._runtime.now()
        return [
            release.claim
            for release in releases
            if release.when <= now
            or (not release.claim.delay and (release.caller is None or has_ended(release.caller())))
        ]

    def stop(self) -> None:
        """End soon, even if releases are pending: the client is closing."""
        with self._mutex:  # else a timer or worker that is about to sleep could clear its event after this
            self._stopped = True
            self._timer_wakeup.set()
            self._worker_wakeup.set()

    def abandon(self, mutex: AbstractContextManager[Any]) -> None:
        """In a forked child: there are no leases to keep and no threads."""
        self._mutex = mutex
        self._stopped = True
        self._timer_wakeup, self._worker_wakeup = self._runtime.event(), self._runtime.event()

    # ── the timer ────────────────────────────────────────────────────────────────────────────────────────────────

    def _ensure_timer(self, when: float) -> None:
        """Start a timer if none runs, and make it wake at `when` at the latest."""
        number = 0
        try:
            with self._mutex:
                if self._stopped:
                    return
                if not self._timer:
                    number = self._timer = next(self._numbers)
                    self._wakes_at = when
                elif when < self._wakes_at:
                    self._wakes_at = when
                    self._timer_wakeup.set()
            if number:
                self._runtime.spawn(lambda: self._run_timer(number), "keeper")
        except BaseException:
            if number and self._timer == number:
                self._timer = 0  # if it runs nevertheless, it ends when it reads this
            raise

    async def _run_timer(self, number: int) -> None:
        try:
            while self._timer == number and await self._tick(number):
                pass
        except GeneratorExit:  # the loop was closed, so nothing can be awaited any more
            raise
        except BaseException:  # cancelled, as asyncio.run does at its end: try the pending releases a last time
            self._end_timer(number)
            await self.flush(self._runtime.now() + LAST_CHANCE)
            raise
        finally:
            self._end_timer(number)

    def _end_timer(self, number: int) -> None:
        if self._timer == number:
            self._timer = 0

    async def _tick(self, number: int) -> bool:
        """Report expired leases, wake workers for due work, then sleep. Returns False when the timer may end."""
        now = self._runtime.now()
        needs_worker, is_idle = False, False
        try:
            self._report_expired(now)
            self._engine.report_dropped()
            with self._mutex:
                if self._stopped:
                    return False
                # Cleared before the state is read: a finaliser that adds work after this sets it again.
                planned, self._wakes_at = self._wakes_at, _FOREVER
                self._timer_wakeup.clear()
                needs_worker, until = self._plan(now)
                is_idle = until is None
                if until is None:
                    # Without work, keep the earlier wake-up time: most leases are acquired and released before it, and
                    # need not wake the timer.
                    until = planned if now < planned < now + IDLE_MAX else now + IDLE_MAX
                self._wakes_at = min(self._wakes_at, until)
            if needs_worker and not self._start_worker():
                self._wakes_at = min(self._wakes_at, now + RETRY_MAX / 4)
        except Exception:
            logger().exception("the keeper's timer failed and continues")
            self._wakes_at = now + RETRY_MAX
        was_woken = await self._timer_wakeup.wait(self._wakes_at)
        if is_idle and not was_woken:
            with self._mutex:
                if self._schedule.is_empty:
                    self._end_timer(number)
            if self._timer != number:
                try:
                    self._runtime.report_idle()
                except Exception:
                    logger().exception("idle connections could not be closed")
                return False
        return True

    def _report_expired(self, now: float) -> None:
        while True:
            with self._mutex:
                expired = self._schedule.take_expired(now)
            if not expired:
                return
            for lease in expired:
                self._engine.expire(lease)

    def _plan(self, now: float) -> tuple[bool, float | None]:
        """Wake a worker if work is due. Returns whether one has to be started, and when the timer is needed again."""
        schedule = self._schedule
        schedule.add_dropped()
        renewal, expiry, release = schedule.next_renewal(), schedule.next_expiry(), schedule.next_release()
        times = [time for time in (renewal, expiry, release) if time is not None]
        until = min((time for time in times if time > now), default=None)
        if until is None and times:
            until = now + IDLE_MAX  # a worker does the due work, and wakes the timer if there is more
        is_due = renewal is not None and renewal <= now
        if not is_due and (release is None or release > now):
            return False, until
        if False in self._workers.values():
            self._worker_wakeup.set()
            return False, until
        if not self._workers:
            return True, until
        # All workers are busy. The first that becomes idle takes this work, but renewals do not wait long for it.
        if not is_due or renewal is None or len(self._workers) >= self.workers_max:
            return False, until
        if renewal <= now - RETRY_MIN:
            return True, until
        return False, renewal + RETRY_MIN if until is None else min(until, renewal + RETRY_MIN)

    # ── the workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def _start_worker(self) -> bool:
        with self._mutex:
            number = next(self._numbers)
            self._workers[number] = True
        try:
            self._runtime.spawn(lambda: self._run_worker(number), "keeper-io")
        except BaseException as error:
            self._workers.pop(number, None)
            if not isinstance(error, ThreadStartError):
                raise
            logger().warning("leases cannot be renewed at the moment, trying again: %s", error)
            return False
        return True

    async def _run_worker(self, number: int) -> None:
        try:
            while not self._stopped:
                due = self._take_due(number)
                if isinstance(due, _Due):
                    await self._do(due)
                elif not await self._wait_for_work(number, due):
                    return
        finally:
            self._workers.pop(number, None)

    def _take_due(self, number: int) -> _Due | float:
        """The due work; or, if there is none, the time until which this worker is idle unless it is woken.

        The timer wakes it when work is due. If the thread of the timer cannot be started, the worker wakes by itself.
        """
        now = self._runtime.now()
        with self._mutex:
            due = self._due_for(number, now)
            if due is not None:
                return due
            self._workers[number] = False
            self._worker_wakeup.clear()
            soonest = self._soonest(number)
        try:
            if soonest is not None:
                self._ensure_timer(soonest)
        except ThreadStartError as error:
            logger().warning("the keeper has no timer at the moment, trying again: %s", error)
            return max(soonest or 0.0, now + RETRY_MIN)
        return now + IDLE_MAX

    def _due_for(self, number: int, now: float) -> _Due | None:
        renewals = self._schedule.take_renewals(now)
        releases = self._schedule.due_releases(now) if self._sends_releases(number) else ()
        return _Due(renewals, releases) if renewals or releases else None

    def _soonest(self, number: int) -> float | None:
        times = [self._schedule.next_renewal(), self._schedule.next_release() if self._sends_releases(number) else None]
        return min((time for time in times if time is not None), default=None)

    def _sends_releases(self, number: int) -> bool:
        """It is the first worker. Its substitutes only renew leases."""
        return number == min(self._workers, default=number)

    async def _wait_for_work(self, number: int, until: float) -> bool:
        """Wait until work is due. Returns False when this worker may end."""
        was_woken = await self._worker_wakeup.wait(until)
        with self._mutex:
            others = {**self._workers}
            others.pop(number, None)
            if not was_woken and (not self._schedule.has_work or (self._timer and False in others.values())):
                self._workers.pop(number, None)
                return False
            self._workers[number] = True
        return True

    async def _do(self, due: _Due) -> None:
        try:
            if due.renewals:
                await self._renew(due.renewals, self._limit())
            if due.releases:
                await self._flush(due.releases, self._limit())
        except Exception:
            # The keeper continues after any error: it postpones this work. A lease that it cannot renew is reported as
            # lost at its deadline.
            logger().exception("the keeper failed and continues")
            await self._runtime.sleep(RETRY_MIN)

    async def _renew(self, leases: Sequence[BaseLease], deadline: float) -> None:
        specs = [lease._spec for lease in leases]
        try:
            try:
                outcomes = await self._engine.send_renewals(leases, deadline)
            finally:
                now = self._runtime.now()
                with self._mutex:
                    self._schedule.renew_again(leases, now)
            failed = [outcome for outcome in outcomes if isinstance(outcome, BackendError)]
            if failed:
                logger().warning("renewal of %d lease(s) failed, trying again: %s", len(failed), failed[0])
            self._engine.note_renewals(leases, specs, outcomes)
        finally:
            with self._mutex:
                self._schedule.add_renewals(leases)
        revocable = [lease for lease in leases if lease._spec.revocable and not lease._revoke_requested]
        if revocable:
            await self._poll_revocations(revocable, deadline)

    async def _poll_revocations(self, leases: Sequence[BaseLease], deadline: float) -> None:
        try:
            requests = await self._engine.operators.revoke_requests(leases, deadline)
        except HoldfastError as error:
            logger().debug("requests to release cannot be polled, trying again at the next renewal: %s", error)
            return
        for lease, is_requested in zip(leases, requests, strict=True):
            if is_requested:
                self._engine.revoke_requested(lease)

    async def _flush(self, claims: Sequence[Claim], deadline: float) -> bool:
        unanswered: Sequence[Claim] = claims
        try:
            outcomes = await self._engine.send_releases(claims, deadline=deadline)
            unanswered = _without_answer(claims, outcomes)
        except BackendError:
            return False
        except ConfigurationError as error:
            # The store cannot be the one that granted these, or must not be used: nothing can be released.
            logger().warning("%d ticket(s) cannot be released: %s", len(claims), error)
            unanswered = []
        finally:
            self._postpone(unanswered)
        for claim in claims:
            if claim not in unanswered:
                self.cancel(claim)
        return not unanswered

    def _postpone(self, claims: Sequence[Claim]) -> None:
        now = self._runtime.now()
        for claim in claims:
            with self._mutex:
                self._schedule.postpone(claim, now)

    def _limit(self) -> float:
        """The deadline of a request that begins now: early enough to try again before a lease ends."""
        now = self._runtime.now()
        limit = now + self._engine.io_timeout
        with self._mutex:
            expiry = self._schedule.next_expiry()
        return limit if expiry is None else min(limit, now + max(RETRY_MIN, (expiry - now) / 2), max(expiry, now))


def _without_answer(claims: Sequence[Claim], outcomes: Sequence[bool | BackendError]) -> list[Claim]:
    pairs = zip(claims, outcomes, strict=True)
    return [claim for claim, outcome in pairs if isinstance(outcome, BackendError)]
