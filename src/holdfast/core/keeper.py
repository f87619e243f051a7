"""The keeper: one per client. It reports losses at their deadline, renews leases, and repeats releases.

A *debt* is a ticket that must be taken off the server although no caller waits for the answer: a cancelled, failed or
late enter, a release without an answer, a lost lease. The keeper repeats `release` until the server has answered.

Two kinds of background threads or tasks share the work:

    timer     sleeps until something is due. It reports losses itself, and has a worker do the rest. It never calls a
              port, a log handler or a subscriber, so nothing that blocks there can delay the report of a loss.
    worker    renews and repeats releases. It may block for longer than its deadline allows, in a name look-up say. If
              a renewal is due while every worker is busy, the timer starts another worker, up to `workers_max`.

Both start when first needed and end when there has been nothing to keep for a while. Taking or releasing a lock wakes
neither. A request is cut half-way to the earliest deadline of any lease: one lost reply costs no lease.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.deadlines import DeadlineHeap
from holdfast.core.events import logger
from holdfast.core.leases import HELD, BaseLease, next_renewal
from holdfast.core.ports import ReleasesLater
from holdfast.core.tickets import LeaseGone, Ticket
from holdfast.errors import BackendError, ConfigurationError, HoldfastError, ThreadStartError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.ports import Caller
    from holdfast.core.tickets import Live

BATCH_MAX = 100  # leases in one request
UNSCHEDULED_MAX = 1000  # leases that are on no list yet
IDLE_MAX = 10.0  # seconds without anything to keep before timer and workers end
RETRY_MIN, RETRY_MAX = 0.05, 1.0
LAST_CHANCE = 1.0  # seconds for the debts when the keeper itself is being cancelled
_FOREVER = float("inf")


class _Due(NamedTuple):
    """Work that is due now."""

    renewals: Sequence[BaseLease]
    releases: Sequence[Ticket]


class _PendingRelease(NamedTuple):
    """A pending release."""

    ticket: Ticket
    when: float  # to try
    pause: float  # after a failure
    caller: weakref.ref[Caller] | None = None  # whose code may run under the lease until `when`; None: no code does


def _is_gone(caller: Caller | None) -> bool:
    """The thread or task does not exist any more."""
    return caller is None


class Keeper:
    """All state is guarded by the engine's mutex, which is never held across a request.

    A signal handler or a finaliser may use the client inside a section. It then only adds to `_unscheduled`, `_pending`
    and `_dropped`, and makes `_wakes_at` earlier: every section stays correct if that happens at any of its calls.
    """

    workers_max = 4  # one, and those that stand in for it while it waits for a server

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._mutex = engine.mutex
        self._renewals: DeadlineHeap[BaseLease] = DeadlineHeap(_renew_at)
        self._expiries: DeadlineHeap[BaseLease] = DeadlineHeap(_expires_at)
        # Leases on neither list: most are given back before the timer looks at them. Only the timer and the workers
        # take them from here, because a KeyboardInterrupt of a caller's thread could lose one.
        self._unscheduled: deque[weakref.ref[Any]] = deque()
        self._pending: dict[str, _PendingRelease] = {}  # by nonce
        self._dropped: deque[_PendingRelease] = deque()  # of leases that no variable refers to any more
        self._numbers = 0
        self._timer = 0  # the number of the timer that runs; 0: none
        self._wakes_at = 0.0  # when it does
        self._timer_wakeup = self._runtime.event()  # wakes it
        self._workers: dict[int, bool] = {}  # number -> it is busy
        self._worker_wakeup = self._runtime.event()  # wakes a worker that is not
        self._stopped = False

    def add(self, lease: BaseLease, ref: weakref.ref[Any]) -> None:
        """Keep this new lease until it is released or lost.

        Raises:
            ThreadStartError: there is no timer, and none can be started.
        """
        when = lease._stop_at
        if lease._spec.renew and lease._renew_at < when:
            when = lease._renew_at
        with self._mutex:
            self._unscheduled.append(ref)
            if self._timer and when >= self._wakes_at and len(self._unscheduled) < UNSCHEDULED_MAX:
                return  # nearly always
        self._ensure_timer(when if len(self._unscheduled) < UNSCHEDULED_MAX else 0.0)

    def schedule(self, ticket: Ticket, after: float = 0.0, caller: weakref.ref[Caller] | None = None) -> None:
        """Take this ticket off the server, from `after` on, until it answers. The owner's code may run until then."""
        when = max(after, self._runtime.now())
        with self._mutex:
            self._pending[ticket.nonce] = _PendingRelease(ticket, when, RETRY_MIN, caller)
        try:
            self._ensure_timer(when)
        except ThreadStartError as error:  # it stays noted: the next use of the client tries again, and so does close()
            logger().warning("the release of %r has to wait: %s", ticket.name, error)
            backend = self._engine.backend
            if isinstance(backend, ReleasesLater):
                backend.release_later(ticket)

    def drop(self, ticket: Ticket, deadline: float, caller: weakref.ref[Caller]) -> None:
        """Owe this one, once its lease has run out: on a store where leases live together it would not end by itself.

        Called by the garbage collector, on any thread: so it is only noted here. The keeper looks at its notes when it
        is up next, which is no later than the lease's own end would have been.
        """
        self._dropped.append(_PendingRelease(ticket, deadline, RETRY_MIN, caller))

    def cancel(self, ticket: Ticket) -> None:
        """Somebody else has paid."""
        with self._mutex:
            self._pending.pop(ticket.nonce, None)

    async def flush(self, deadline: float, has_ended: Callable[[Caller | None], bool] = _is_gone) -> None:
        """Try every pending release once, now, until the first that gets no answer."""
        tickets = self.pending_releases(has_ended)
        for start in range(0, len(tickets), BATCH_MAX):
            if not await self._flush(tickets[start : start + BATCH_MAX], deadline):
                return

    async def flush_without_timer(self, deadline: float) -> None:
        """Pay if no timer runs that would, because its thread could not be started when the debts were noted.

        A waiter calls it before it waits. On a store where tickets share a lease or a session, it would keep alive a
        ticket of its own client that blocks it.
        """
        if not self._pending or self._timer or self._stopped:
            return
        try:
            self._ensure_timer(self._runtime.now())
        except ThreadStartError:
            await self.flush(deadline)

    @property
    def has_nothing_pending(self) -> bool:
        """There is no release to repeat or to wait for."""
        return not self._pending and not self._dropped

    def pending_releases(self, has_ended: Callable[[Caller | None], bool]) -> list[Ticket]:
        """The pending releases, but for those of leases that code may still run under, or that a delay keeps there."""
        with self._mutex:
            self._schedule_dropped()
            releases = list(self._pending.values())
        now = self._runtime.now()
        return [
            release.ticket
            for release in releases
            if release.when <= now
            or (not release.ticket.delay and (release.caller is None or has_ended(release.caller())))
        ]

    def stop(self) -> None:
        """End soon, whatever is left: the client is closing."""
        with self._mutex:  # or one that is about to sleep could clear its event after it has looked
            self._stopped = True
            self._timer_wakeup.set()
            self._worker_wakeup.set()

    def abandon(self, mutex: AbstractContextManager[Any]) -> None:
        """In a forked child: there is nothing to keep, and nobody to keep it."""
        self._mutex = mutex
        self._stopped = True
        self._timer_wakeup, self._worker_wakeup = self._runtime.event(), self._runtime.event()

    # ── the timer ────────────────────────────────────────────────────────────────────────────────────────────────

    def _ensure_timer(self, when: float) -> None:
        """See to it that a timer runs, and is awake by then."""
        number = 0
        try:
            with self._mutex:
                if self._stopped:
                    return
                if not self._timer:
                    number = self._timer = self._next_number()
                    self._wakes_at = when
                elif when < self._wakes_at:
                    self._wakes_at = when
                    self._timer_wakeup.set()
            if number:
                self._runtime.spawn(lambda: self._run_timer(number), "keeper")
        except BaseException:
            if number and self._timer == number:
                self._timer = 0  # should it run all the same, it ends when it sees this
            raise

    async def _run_timer(self, number: int) -> None:
        try:
            while self._timer == number and await self._tick(number):
                pass
        except GeneratorExit:  # the loop was closed under us: there is nothing left to await on
            raise
        except BaseException:  # cancelled, as asyncio.run does at its end: the debts get a last chance
            self._end_timer(number)
            await self.flush(self._runtime.now() + LAST_CHANCE)
            raise
        finally:
            self._end_timer(number)

    def _end_timer(self, number: int) -> None:
        if self._timer == number:
            self._timer = 0

    async def _tick(self, number: int) -> bool:
        """Report what is over, have workers do what is due, then sleep; False when the timer may end."""
        now = self._runtime.now()
        needs_worker, is_idle = False, False
        try:
            self._report_expired(now)
            with self._mutex:
                if self._stopped:
                    return False
                # Before anything is looked at: what a finaliser adds from here on rings again.
                promised, self._wakes_at = self._wakes_at, _FOREVER
                self._timer_wakeup.clear()
                needs_worker, until = self._plan(now)
                is_idle = until is None
                if until is None:
                    # With nothing to do, a time that was promised before still stands: leases that come and go within
                    # it, which is most of them, then need not ring.
                    until = promised if now < promised < now + IDLE_MAX else now + IDLE_MAX
                self._wakes_at = min(self._wakes_at, until)
            if needs_worker and not self._start_worker():
                self._wakes_at = min(self._wakes_at, now + RETRY_MAX / 4)
        except Exception:
            logger().exception("the keeper's timer failed and goes on")
            self._wakes_at = now + RETRY_MAX
        was_woken = await self._timer_wakeup.wait(self._wakes_at)
        if is_idle and not was_woken:
            with self._mutex:
                # A worker may have moved new leases from `_unscheduled` to the lists since then.
                is_over = not self._unscheduled and self._expiries.earliest() is None
                if is_over and not self._pending and not self._dropped:
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
                over = self._lists()[1].take(now, BATCH_MAX)
            if not over:
                return
            for lease in over:
                self._engine.lose(lease, lease._why_over())

    def _plan(self, now: float) -> tuple[bool, float | None]:
        """Wake a worker if something is due. Whether one has to be started, and when the timer is needed again."""
        renewals, expiries = self._lists()
        self._schedule_dropped()
        renewal, expiry = renewals.earliest(), expiries.earliest()
        release = min((one.when for one in list(self._pending.values())), default=None)
        times = [time for time in (renewal, expiry, release) if time is not None]
        until = min((time for time in times if time > now), default=None)
        if until is None and times:
            until = now + IDLE_MAX  # what is due now is with a worker, which says when it knows more
        is_due = renewal is not None and renewal <= now
        if not is_due and (release is None or release > now):
            return False, until
        if False in self._workers.values():
            self._worker_wakeup.set()
            return False, until
        if not self._workers:
            return True, until
        # All are busy, and the first that comes back goes on with this. Renewals do not wait for it for long.
        if not is_due or renewal is None or len(self._workers) >= self.workers_max:
            return False, until
        if renewal <= now - RETRY_MIN:
            return True, until
        return False, renewal + RETRY_MIN if until is None else min(until, renewal + RETRY_MIN)

    def _schedule_dropped(self) -> None:
        while self._dropped:
            release = self._dropped.popleft()
            self._pending[release.ticket.nonce] = release

    def _lists(self) -> tuple[DeadlineHeap[BaseLease], DeadlineHeap[BaseLease]]:
        """Renewals and alarms, up to date."""
        while self._unscheduled:
            lease = self._unscheduled.popleft()()
            if lease is not None:
                self._renewals.add(lease)
                self._expiries.add(lease)
        return self._renewals, self._expiries

    # ── the workers ──────────────────────────────────────────────────────────────────────────────────────────────

    def _start_worker(self) -> bool:
        with self._mutex:
            number = self._next_number()
            self._workers[number] = True
        try:
            self._runtime.spawn(lambda: self._run_worker(number), "keeper-io")
        except BaseException as error:
            self._workers.pop(number, None)
            if not isinstance(error, ThreadStartError):
                raise
            logger().warning("leases cannot be renewed for now, trying again: %s", error)
            return False
        return True

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _run_worker(self, number: int) -> None:
        try:
            while not self._stopped:
                due = self._take_due(number)
                if isinstance(due, _Due):
                    await self._do(due)
                elif not await self._rest(number, due):
                    return
        finally:
            self._workers.pop(number, None)

    def _take_due(self, number: int) -> _Due | float:
        """The work that is due. If there is none, this worker is idle, until then if it is not woken.

        The timer knows when it is needed again. If the timer's thread cannot be started, the worker looks by itself.
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
            logger().warning("the keeper has no timer for now, trying again: %s", error)
            return max(soonest or 0.0, now + RETRY_MIN)
        return now + IDLE_MAX

    def _due_for(self, number: int, now: float) -> _Due | None:
        renewals = self._lists()[0].take(now, BATCH_MAX)
        releases = [release.ticket for release in self._pending_for(number) if release.when <= now][:BATCH_MAX]
        return _Due(renewals, releases) if renewals or releases else None

    def _soonest(self, number: int) -> float | None:
        times = [release.when for release in self._pending_for(number)]
        renewal = self._renewals.earliest()
        return min(times, default=None) if renewal is None else min([renewal, *times])

    def _pending_for(self, number: int) -> Collection[_PendingRelease]:
        """The first worker pays; who stands in for it is there for the leases."""
        return list(self._pending.values()) if number == min(self._workers, default=number) else ()

    async def _rest(self, number: int, until: float) -> bool:
        """Until something is due; False when this worker may end."""
        was_woken = await self._worker_wakeup.wait(until)
        with self._mutex:
            others = {**self._workers}
            others.pop(number, None)
            has_work = self._renewals.earliest() is not None or bool(self._pending)
            if not was_woken and (not has_work or (self._timer and False in others.values())):
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
            # The keeper goes on after any error: this work is put off, and leases that it cannot renew are reported
            # lost at their deadline.
            logger().exception("the keeper failed and goes on")
            await self._runtime.sleep(RETRY_MIN)

    async def _renew(self, leases: Sequence[BaseLease], deadline: float) -> None:
        outcomes: Sequence[Live | LeaseGone | BackendError]
        try:
            outcomes = await self._engine.backend.renew([lease._ticket for lease in leases], deadline=deadline)
        except BackendError as error:
            outcomes = [error] * len(leases)
        finally:
            self._reschedule(leases)
        failed = [outcome for outcome in outcomes if isinstance(outcome, BackendError)]
        if failed:
            logger().warning("renewal of %d lease(s) failed, trying again: %s", len(failed), failed[0])
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, BackendError):
                continue
            if isinstance(outcome, LeaseGone):
                self._engine.lose(lease, outcome.reason)
            else:
                self._engine.renewed(lease, outcome.deadline)
        asked = [lease for lease in leases if lease._spec.revocable and not lease._revoke_requested]
        if asked:
            await self._poll_revocations(asked, deadline)

    async def _poll_revocations(self, leases: Sequence[BaseLease], deadline: float) -> None:
        try:
            requests = await self._engine.requests(leases, deadline)
        except HoldfastError as error:
            logger().debug("cannot ask for requests, asking again at the next renewal: %s", error)
            return
        for lease, is_asked_for in zip(leases, requests, strict=True):
            if is_asked_for:
                self._engine.revoke_requested(lease)

    def _reschedule(self, leases: Sequence[BaseLease]) -> None:
        """Back on the list, for soon. Those that were renewed move on from there; those that have ended drop out."""
        now = self._runtime.now()
        with self._mutex:
            self._put_back(leases, now)

    def _put_back(self, leases: Sequence[BaseLease], now: float) -> None:
        for lease in leases:
            pause = min(RETRY_MAX, lease.ttl / 10)
            if now < lease._deadline:  # sooner if it ends soon: it may have been renewed without being prolonged
                pause = min(pause, max(RETRY_MIN, next_renewal(now, lease._deadline) - now))
            lease._renew_at = now + pause
            self._renewals.add(lease)

    async def _flush(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        unpaid: Sequence[Ticket] = tickets
        try:
            outcomes = await self._engine.backend.release(tickets, deadline=deadline)
            unpaid = _unanswered(tickets, outcomes)
        except BackendError:
            return False
        except ConfigurationError as error:
            # What stands there now cannot be ours, or must not be used: there is nobody to pay.
            logger().warning("%d ticket(s) cannot be given back: %s", len(tickets), error)
            unpaid = []
        finally:
            self._postpone(unpaid)
        for nonce in {ticket.nonce for ticket in tickets} - {ticket.nonce for ticket in unpaid}:
            self._pending.pop(nonce, None)
        return not unpaid

    def _postpone(self, tickets: Sequence[Ticket]) -> None:
        now = self._runtime.now()
        for ticket in tickets:
            with self._mutex:
                release = self._pending.get(ticket.nonce)
                if release is not None:
                    pause = min(RETRY_MAX, 2 * release.pause)
                    self._pending[ticket.nonce] = _PendingRelease(ticket, now + pause, pause, release.caller)

    def _limit(self) -> float:
        """When to cut the request that begins now: in time to try again before a lease ends."""
        now = self._runtime.now()
        limit = now + self._engine.io_timeout
        with self._mutex:
            expiry = self._lists()[1].earliest()
        return limit if expiry is None else min(limit, now + max(RETRY_MIN, (expiry - now) / 2), max(expiry, now))


def _unanswered(tickets: Sequence[Ticket], outcomes: Sequence[bool | BackendError]) -> list[Ticket]:
    pairs = zip(tickets, outcomes, strict=True)
    return [ticket for ticket, outcome in pairs if isinstance(outcome, BackendError)]


def _renew_at(lease: BaseLease) -> float | None:
    return lease._renew_at if lease._phase is HELD and lease._spec.renew else None


def _expires_at(lease: BaseLease) -> float | None:
    return lease._stop_at if lease._phase is HELD else None
