"""The keeper: one per client. It renews leases, tells of losses at their deadline, and pays debts.

A *debt* is a ticket that must be taken off the server although nobody waits for the answer: a cancelled, failed or
late enter, a release without an answer, a lost lease. The keeper repeats `leave` until the server has answered.

One background thread or task does all three. It starts when first needed, sleeps until something is due, and ends when
there has been nothing to keep for a while. Taking or releasing a lock does not wake it. A request that hangs is cut
half-way to the earliest deadline of any lease: one lost reply costs no lease, and a dead server cannot delay the news
of a loss. If something is due before a request can come back (a lease taken meanwhile, say), another thread or task
stands in until then.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast.core.agenda import Agenda
from holdfast.core.events import logger
from holdfast.core.holds import HELD, Hold
from holdfast.core.tickets import Gone
from holdfast.errors import BackendError, ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.tickets import Live, Ticket

BATCH_MAX = 100  # leases in one request
FRESH_MAX = 64  # leases that are on no list yet
IDLE_MAX = 10.0  # seconds without anything to keep before the keeper ends
RETRY_MIN, RETRY_MAX = 0.05, 1.0
LAST_CHANCE = 1.0  # seconds for the debts when the keeper itself is being cancelled


class Keeper:
    """All state is guarded by the engine's mutex, which is never held across a request."""

    workers_max = 4  # one, and those that stand in for it while it waits for a server

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._mutex = engine.mutex
        self._renewals: Agenda[Hold] = Agenda(_renew_at)
        self._alarms: Agenda[Hold] = Agenda(_alarm_at)
        self._fresh: list[weakref.ref[Any]] = []  # leases on neither list: most are given back before it is looked at
        self._debts: dict[str, tuple[Ticket, float, float]] = {}  # nonce -> ticket, when to try, how long to pause
        self._dropped: deque[tuple[Ticket, float]] = deque()  # leases nobody refers to any more; deadlines
        self._workers: dict[int, float] = {}  # number -> when the request that it waits for is cut; 0: it does not
        self._last_worker = 0
        self._stopped = False
        self._wakes_at = 0.0
        self._bell = self._runtime.event()

    def add(self, hold: Hold, ref: weakref.ref[Any]) -> None:
        """Keep this new lease until it is released or lost."""
        when = hold._stop_at
        if hold._terms.renew and hold._renew_at < when:
            when = hold._renew_at
        with self._mutex:
            self._fresh.append(ref)
            if len(self._fresh) > FRESH_MAX:
                self._lists()
            if when >= self._wakes_at and self._workers and not any(self._workers.values()):
                return  # nearly always: somebody is there, not waiting for the server, and up in time
        self._be_there(when, is_lease=True)

    def owe(self, ticket: Ticket, after: float = 0.0) -> None:
        """Take this ticket off the server, from `after` on, until it answers."""
        when = max(after, self._runtime.now())
        with self._mutex:
            self._debts[ticket.nonce] = (ticket, when, RETRY_MIN)
        self._be_there(when, is_lease=False)

    def drop(self, ticket: Ticket, deadline: float) -> None:
        """Owe this one, once its lease has run out: on a store where leases live together it would not end by itself.

        Called by the garbage collector, on any thread, which may have our mutex: so it is only noted here. The keeper
        looks at its notes when it is up next, which is no later than the lease's own end would have been.
        """
        self._dropped.append((ticket, deadline))

    def forgive(self, ticket: Ticket) -> None:
        """Somebody else has paid."""
        with self._mutex:
            self._debts.pop(ticket.nonce, None)

    async def pay_all(self, deadline: float) -> None:
        """Try every debt once, now, until the first that gets no answer. What a delay keeps there stays there."""
        now = self._runtime.now()
        with self._mutex:
            tickets = [ticket for ticket, when, _ in self._debts.values() if when <= now or not ticket.delay]
        for start in range(0, len(tickets), BATCH_MAX):
            if not await self._pay(tickets[start : start + BATCH_MAX], deadline):
                return

    def stop(self) -> None:
        """End soon, whatever is left: the client is closing."""
        with self._mutex:  # or a worker that is about to sleep could clear the bell after it has looked
            self._stopped = True
        self._bell.set()

    def abandon(self, mutex: AbstractContextManager[Any]) -> None:
        """In a forked child: there is nothing to keep, and nobody to keep it."""
        self._mutex = mutex
        self._stopped = True
        self._bell = self._runtime.event()

    def _be_there(self, when: float, *, is_lease: bool) -> None:
        """See to it that somebody looks at what is due by then. Debts can wait until the one who pays them is back."""
        worker = 0
        try:
            with self._mutex:
                if self._stopped:
                    return
                everybody_is_away = is_lease and all(until > when for until in self._workers.values())
                if not self._workers or (everybody_is_away and len(self._workers) < self.workers_max):
                    worker = self._last_worker = self._last_worker + 1
                    self._workers[worker] = 0.0
                    self._wakes_at = when
                elif when >= self._wakes_at:
                    return
                else:
                    self._wakes_at = when
            if worker:
                self._runtime.spawn(lambda: self._run(worker), "keeper")
            else:
                self._bell.set()
        except BaseException:
            self._forget(worker)  # should it run all the same, one more does no harm
            raise

    async def _run(self, worker: int) -> None:
        try:
            while not self._stopped and await self._turn(worker):
                pass
        except GeneratorExit:  # the loop was closed under us: there is nothing left to await on
            raise
        except BaseException:  # cancelled, as asyncio.run does at its end: the debts get a last chance
            self._forget(worker)
            await self.pay_all(self._runtime.now() + LAST_CHANCE)
            raise
        finally:
            self._forget(worker)

    def _is_back(self, worker: int) -> None:
        with self._mutex:
            self._workers[worker] = 0.0

    def _forget(self, worker: int) -> None:
        with self._mutex:
            self._workers.pop(worker, None)

    async def _turn(self, worker: int) -> bool:
        """Do what is due, then sleep until something is; False when this worker may end."""
        try:
            now = self._runtime.now()
            self._sound_alarms(now)
            with self._mutex:
                while self._dropped:
                    ticket, deadline = self._dropped.popleft()
                    self._debts[ticket.nonce] = (ticket, deadline, RETRY_MIN)
                renewals, _ = self._lists()
                due = renewals.take(now, BATCH_MAX)
                owed = [ticket for ticket, when, _ in self._debts_of(worker) if when <= now][:BATCH_MAX]
            try:
                if due:
                    await self._renew(due, self._limit(worker))
                if owed:
                    await self._pay(owed, self._limit(worker))
            finally:
                self._is_back(worker)
        except Exception:
            # Whatever broke, the keeper goes on: what it was about is put off, and leases that it cannot renew are told
            # lost at their deadline.
            logger().exception("the keeper failed and goes on")
            return True
        return True if due or owed else await self._sleep(worker, now)

    def _lists(self) -> tuple[Agenda[Hold], Agenda[Hold]]:
        """Renewals and alarms, up to date: whoever wants to know what is due gets them here."""
        for ref in self._fresh:
            hold = ref()
            if hold is not None:
                self._renewals.add(hold)
                self._alarms.add(hold)
        self._fresh.clear()  # an interrupt before this lets some stand there twice, which does no harm
        return self._renewals, self._alarms

    def _debts_of(self, worker: int) -> Collection[tuple[Ticket, float, float]]:
        """The first worker pays; who stands in for it is there for the leases."""
        return self._debts.values() if worker == min(self._workers, default=worker) else ()

    async def _sleep(self, worker: int, now: float) -> bool:
        with self._mutex:
            times = [agenda.earliest() for agenda in self._lists()]
            times += [when for _, when, _ in self._debts_of(worker)]
            until = min((time for time in times if time is not None), default=None)
            if until is None:
                # With nothing to do, a time that was promised before still stands: leases that come and go within it,
                # which is most of them, then need not ring.
                until_idle = now + IDLE_MAX
                self._wakes_at = self._wakes_at if now < self._wakes_at < until_idle else until_idle
            else:
                self._wakes_at = until
            somebody_else = any(busy == 0.0 for other, busy in self._workers.items() if other != worker)
            if self._stopped or somebody_else:
                self._workers.pop(worker, None)
                self._bell.set()  # in case it is asleep: it looks at what has changed since
                return False
            self._bell.clear()
        rung = await self._bell.wait(self._wakes_at)
        if until is None and not rung:
            with self._mutex:
                _, alarms = self._lists()
                if alarms.earliest() is None and not self._debts and not self._dropped:
                    self._workers.pop(worker, None)
                    return False
        return True

    def _sound_alarms(self, now: float) -> None:
        while True:
            with self._mutex:
                _, alarms = self._lists()
                over = alarms.take(now, BATCH_MAX)
            if not over:
                return
            for hold in over:
                self._engine.lose(hold, hold._why_over())

    async def _renew(self, holds: Sequence[Hold], deadline: float) -> None:
        outcomes: Sequence[Live | Gone | BackendError]
        try:
            outcomes = await self._engine.backend.renew([hold._ticket for hold in holds], deadline=deadline)
        except BackendError as error:
            outcomes = [error] * len(holds)
        finally:
            self._again(holds)
        failed = [outcome for outcome in outcomes if isinstance(outcome, BackendError)]
        if failed:
            logger().warning("renewal of %d lease(s) failed, trying again: %s", len(failed), failed[0])
        for hold, outcome in zip(holds, outcomes, strict=True):
            if isinstance(outcome, BackendError):
                continue
            if isinstance(outcome, Gone):
                self._engine.lose(hold, outcome.reason)
            else:
                self._engine.renewed(hold, outcome.deadline)
        asked = [hold for hold in holds if hold._terms.revocable and not hold._revoke_requested]
        if asked:
            await self._listen(asked, deadline)

    async def _listen(self, holds: Sequence[Hold], deadline: float) -> None:
        try:
            requests = await self._engine.requests(holds, deadline)
        except HoldfastError as error:
            logger().debug("cannot ask for requests, asking again at the next renewal: %s", error)
            return
        for hold, is_asked_for in zip(holds, requests, strict=True):
            if is_asked_for:
                self._engine.revoke_requested(hold)

    def _again(self, holds: Sequence[Hold]) -> None:
        """Back on the list, for soon. Those that were renewed move on from there; those that have ended drop out."""
        now = self._runtime.now()
        with self._mutex:
            for hold in holds:
                hold._renew_at = now + min(RETRY_MAX, hold.ttl / 10)
                self._renewals.add(hold)

    async def _pay(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        unpaid: Sequence[Ticket] = tickets
        try:
            outcomes = await self._engine.backend.leave(tickets, deadline=deadline)
            pairs = zip(tickets, outcomes, strict=True)
            unpaid = [ticket for ticket, outcome in pairs if isinstance(outcome, BackendError)]
        except BackendError:
            return False
        except ConfigurationError as error:
            # What stands there now cannot be ours, or must not be used: there is nobody to pay.
            logger().warning("%d ticket(s) cannot be given back: %s", len(tickets), error)
            unpaid = []
        finally:
            self._put_off(unpaid)
        with self._mutex:
            for nonce in {ticket.nonce for ticket in tickets} - {ticket.nonce for ticket in unpaid}:
                self._debts.pop(nonce, None)
        return not unpaid

    def _put_off(self, tickets: Sequence[Ticket]) -> None:
        now = self._runtime.now()
        with self._mutex:
            for ticket in tickets:
                debt = self._debts.get(ticket.nonce)
                if debt is not None:
                    pause = min(RETRY_MAX, 2 * debt[2])
                    self._debts[ticket.nonce] = (ticket, now + pause, pause)

    def _limit(self, worker: int) -> float:
        """When to cut the request that begins now: in time to try again before a lease ends, and to tell of its end."""
        now = self._runtime.now()
        with self._mutex:
            _, alarms = self._lists()
            alarm = alarms.earliest()
            limit = now + self._engine.io_timeout
            if alarm is not None:
                limit = min(limit, now + max(RETRY_MIN, (alarm - now) / 2), max(alarm, now))
            self._workers[worker] = limit
        return limit


def _renew_at(hold: Hold) -> float | None:
    return hold._renew_at if hold._phase is HELD and hold._terms.renew else None


def _alarm_at(hold: Hold) -> float | None:
    return hold._stop_at if hold._phase is HELD else None
