"""The keeper: one per client. It renews leases, tells of losses at their deadline, and pays debts.

A *debt* is a ticket that must be taken off the server although nobody waits for the answer: a cancelled, failed or
late enter, a release without an answer, a lost lease. The keeper repeats `leave` until the server has answered.

One background thread or task does all three. A request that hangs is cut half-way to the earliest deadline of any
lease: one lost reply costs no lease, and a dead server cannot delay the news of a loss. (Only for a lease that is taken
meanwhile, and ends before that request does, somebody else has to look at the clock.) It starts when first needed,
sleeps until something is due, and ends when there has been nothing to keep for a while. Taking or releasing a lock does
not wake it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast.core.agenda import Agenda
from holdfast.core.events import logger
from holdfast.core.holds import Hold, Phase
from holdfast.core.tickets import Gone
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.tickets import Ticket

BATCH_MAX = 100  # leases in one request
IDLE_MAX = 10.0  # seconds without anything to keep before the keeper ends
RETRY_MIN, RETRY_MAX = 0.05, 1.0
LAST_CHANCE = 1.0  # seconds for the debts when the keeper itself is being cancelled


class Keeper:
    """All state is guarded by the engine's mutex, which is never held across a request."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._mutex = engine.mutex
        self._renewals: Agenda[Hold] = Agenda(_renew_at)
        self._alarms: Agenda[Hold] = Agenda(_alarm_at)
        self._debts: dict[str, tuple[Ticket, float, float]] = {}  # nonce -> ticket, when to try, how long to pause
        self._running = False
        self._stopped = False
        self._wakes_at = 0.0
        self._busy_until = 0.0  # when the request that it waits for is cut
        self._bell = self._runtime.event()
        self._end = self._runtime.event()

    def add(self, hold: Hold) -> None:
        """Keep this new lease until it is released or lost."""
        stop_at, renew_at = hold._stop_at, hold._renew_at
        with self._mutex:
            self._alarms.put(stop_at, hold)
            if hold._terms.renew:
                self._renewals.put(renew_at, hold)
            is_away = stop_at < self._busy_until
        self._be_there(min(renew_at, stop_at))
        if is_away:
            self._runtime.spawn(lambda: self._stand_in(stop_at), "alarm")

    def owe(self, ticket: Ticket, after: float = 0.0) -> None:
        """Take this ticket off the server, from `after` on, until it answers."""
        when = max(after, self._runtime.now())
        with self._mutex:
            self._debts[ticket.nonce] = (ticket, when, RETRY_MIN)
        self._be_there(when)

    def forgive(self, ticket: Ticket) -> None:
        """Somebody else has paid."""
        with self._mutex:
            self._debts.pop(ticket.nonce, None)

    async def pay_all(self, deadline: float) -> None:
        """Try every debt once, now, until the first that gets no answer."""
        with self._mutex:
            tickets = [ticket for ticket, _, _ in self._debts.values()]
        for start in range(0, len(tickets), BATCH_MAX):
            if not await self._pay(tickets[start : start + BATCH_MAX], deadline):
                return

    def stop(self) -> None:
        """End soon, whatever is left: the client is closing."""
        self._stopped = True
        self._bell.set()
        self._end.set()

    def abandon(self, mutex: AbstractContextManager[Any]) -> None:
        """In a forked child: there is nothing to keep, and nobody to keep it."""
        self._mutex = mutex
        self._stopped = True
        self._bell = self._runtime.event()
        self._end = self._runtime.event()

    def _be_there(self, when: float) -> None:
        start = False
        try:
            with self._mutex:
                if self._stopped or (self._running and when >= self._wakes_at):
                    return
                self._wakes_at = when
                if not self._running:
                    self._running = start = True
            if start:
                self._runtime.spawn(self._run, "keeper")
            else:
                self._bell.set()
        except BaseException:
            if start:
                self._running = False  # should it run all the same, a second one does no harm
            raise

    async def _run(self) -> None:
        try:
            while not self._stopped and await self._turn():
                pass
        except GeneratorExit:  # the loop was closed under us: there is nothing left to await on
            raise
        except BaseException:  # cancelled, as asyncio.run does at its end: the debts get a last chance
            self._running = False
            await self.pay_all(self._runtime.now() + LAST_CHANCE)
            raise

    async def _turn(self) -> bool:
        """Do what is due, then sleep until something is; False when the keeper may end."""
        try:
            now = self._runtime.now()
            self._sound_alarms(now)
            with self._mutex:
                due = self._renewals.take(now, BATCH_MAX)
                owed = [ticket for ticket, when, _ in self._debts.values() if when <= now][:BATCH_MAX]
            if due:
                await self._renew(due)
            if owed:
                await self._pay(owed, self._limit())
        except Exception:
            # Whatever broke, the keeper goes on: what it was about is put off, and leases that it cannot renew are told
            # lost at their deadline.
            logger().exception("the keeper failed and goes on")
            return True
        return True if due or owed else await self._sleep(now)

    async def _stand_in(self, when: float) -> None:
        """Tell of a loss at that moment, while the keeper waits for an answer."""
        await self._end.wait(when)
        self._sound_alarms(self._runtime.now())

    async def _sleep(self, now: float) -> bool:
        with self._mutex:
            times = [self._renewals.earliest(), self._alarms.earliest()]
            times += [when for _, when, _ in self._debts.values()]
            until = min((time for time in times if time is not None), default=None)
            self._wakes_at = now + IDLE_MAX if until is None else until
            if self._stopped:
                return False
            self._bell.clear()
        rung = await self._bell.wait(self._wakes_at)
        if until is None and not rung:
            with self._mutex:
                if self._alarms.earliest() is None and not self._debts:
                    self._running = False
                    return False
        return True

    def _sound_alarms(self, now: float) -> None:
        while True:
            with self._mutex:
                over = self._alarms.take(now, BATCH_MAX)
            if not over:
                return
            for hold in over:
                self._engine.lose(hold, hold._why_over())

    async def _renew(self, holds: Sequence[Hold]) -> None:
        try:
            outcomes = await self._engine.backend.renew([hold._ticket for hold in holds], deadline=self._limit())
        except BackendError as error:
            logger().warning("renewal of %d lease(s) failed, trying again: %s", len(holds), error)
            outcomes = []
        finally:
            self._busy_until = 0.0
            self._again(holds)
        for hold, outcome in zip(holds, outcomes, strict=False):
            if isinstance(outcome, Gone):
                self._engine.lose(hold, outcome.reason)
            else:
                self._engine.renewed(hold, outcome.deadline)

    def _again(self, holds: Sequence[Hold]) -> None:
        """Back on the list, for soon. Those that were renewed move on from there; those that have ended drop out."""
        now = self._runtime.now()
        with self._mutex:
            for hold in holds:
                hold._renew_at = now + min(RETRY_MAX, hold.ttl / 10)
                self._renewals.add(hold)

    async def _pay(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        try:
            await self._engine.backend.leave(tickets, deadline=deadline)
        except BackendError:
            self._put_off(tickets)
            return False
        except BaseException:
            self._put_off(tickets)
            raise
        finally:
            self._busy_until = 0.0
        with self._mutex:
            for ticket in tickets:
                self._debts.pop(ticket.nonce, None)
        return True

    def _put_off(self, tickets: Sequence[Ticket]) -> None:
        now = self._runtime.now()
        with self._mutex:
            for ticket in tickets:
                debt = self._debts.get(ticket.nonce)
                if debt is not None:
                    pause = min(RETRY_MAX, 2 * debt[2])
                    self._debts[ticket.nonce] = (ticket, now + pause, pause)

    def _limit(self) -> float:
        """When to cut the request that begins now: in time to try again before a lease ends, and to tell of its end."""
        now = self._runtime.now()
        with self._mutex:
            alarm = self._alarms.earliest()
            limit = now + self._engine.io_timeout
            if alarm is not None:
                limit = min(limit, now + max(RETRY_MIN, (alarm - now) / 2))
            self._busy_until = limit
        return limit


def _renew_at(hold: Hold) -> float | None:
    return hold._renew_at if hold._phase is Phase.HELD and hold._terms.renew else None


def _alarm_at(hold: Hold) -> float | None:
    return hold._stop_at if hold._phase is Phase.HELD else None
