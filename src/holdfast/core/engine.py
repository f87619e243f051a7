"""The engine: acquire, release, renew, lose. Written once, for every backend and every runtime.

Its promise under faults: whatever is raised here and wherever (an error, a cancellation, a KeyboardInterrupt), either
the caller has the lease, or the ticket is on its way off the server, in the keeper's hands. So every await stands
inside a guard that owes the ticket, and the lease is made, registered and published inside that same guard.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from holdfast.core.clock import before_delay
from holdfast.core.events import Event, Events, logger
from holdfast.core.holds import HELD, LOST, OWED, RELEASED, RELEASING, STORE_GONE, Hold, Phase, Terms, next_renewal
from holdfast.core.keeper import BATCH_MAX, Keeper
from holdfast.core.ports import ListsBySearch, ReportsGone, StoreMissing
from holdfast.core.tickets import Gone, LockInfo, Ticket, Waiting
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
    from holdfast.core.handles import Handle
    from holdfast.core.ports import Backend, Listing, Owner, Runtime
    from holdfast.core.tickets import Granted
    from holdfast.guarantees import Guarantees

L = TypeVar("L", bound=Hold)
T = TypeVar("T")

IO_TIMEOUT = 5.0  # seconds for one request
IO_TIMEOUT_MIN = 1.0  # what a request gets even if the caller's own time is up sooner
REVOKED = "revoke:"  # before a lock's name: the mark that says up to which fence its leases are asked for
REQUEST_KEPT = 86400.0  # seconds
OUTAGE_PAUSE_MIN, OUTAGE_PAUSE_MAX = 0.05, 1.0

_CLIENT_CLOSED = "its client was closed"
_PROCESS_ENDS = "the process ends, and no code runs under this lease any more"
_serials = itertools.count()
_FOREVER = float("inf")


class Attempt(NamedTuple, Generic[T]):
    """What came of an acquire: the lease, or who was in the way when the time was up."""

    lease: T | None
    holder: str | None = None
    waited: float = 0.0


class Required(Protocol):
    """The least that a program asks of its store."""

    def insist(self, url: str, guarantees: Guarantees) -> None:
        """Raise ConfigurationError if they fall short."""


class Engine(Generic[L]):
    """One per client: its leases, its keeper, its backend."""

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
        self.needs_store = False  # reading calls raise StoreMissing where a store does not exist: for operators
        self.mutex = runtime.mutex()
        self.closing = runtime.event()  # for those that only look and wait: nobody else tells them to end
        self._lease_type = lease_type
        self._required = required
        self._serial = next(_serials)
        self._who = runtime.who()
        self._last_info = ("", "")  # what a lock tells of itself, and what tickets say with it: mostly as the last time
        self._holds: dict[str, weakref.ref[L]] = {}  # by nonce, in the order of their grants
        self._taking: dict[str, Ticket] = {}  # what acquires are about: the server may know these already
        self._keeper = Keeper(self)
        self._closed = False
        self._is_told = isinstance(backend, ReportsGone)
        if isinstance(backend, ReportsGone):
            backend.on_gone(self._store_gone)

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    def acquire(
        self, lock: Handle[L], timeout: float | None, owner: Owner | None = None
    ) -> Coroutine[Any, Any, Attempt[L]]:
        """Take the lock, or wait for it until the time is up; for the thread or task that calls this, or `owner`.

        Raises:
            WouldDeadlock: the caller holds it already, in a way that keeps this claim out.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server could not be asked, at first or when the time was up.
        """
        caller = self.runtime.owner() if owner is None else owner
        held = self._held_by(caller, lock._terms)
        if held is not None and owner is not None and owner is not self.runtime.owner() and not lock._terms.reentrant:
            held = None  # this runs in a task of its own, which may wait until the calling task has released it
        return self._take(lock, caller, timeout) if held is None else self._reenter(held, lock, caller, timeout)

    async def _take(self, lock: Handle[L], owner: Owner, timeout: float | None) -> Attempt[L]:
        terms = lock._terms
        started = self.runtime.now()
        give_up = _FOREVER if timeout is None else started + timeout
        ticket = self._ticket(terms)
        hold: L | None = None
        in_the_way: Waiting | None = None  # the server's last answer
        outage: BackendError | None = None  # what keeps us from its next one
        pause = OUTAGE_PAUSE_MIN
        known = False  # the server may have heard of this ticket
        limit = started + self.io_timeout if timeout is None else self._limit(give_up)
        try:
            self._taking[ticket.nonce] = ticket
            # Not `while not self._closed`: from Python 3.13 on, the backward jump of a loop with a condition is not
            # covered by the handler below, and an interrupt there would leave the ticket on the server.
            while True:
                if self._closed:
                    break
                was_known, known = known, True
                try:
                    outcome = await self.backend.enter(ticket, queue=timeout != 0, deadline=limit)
                except BackendUnavailable as error:
                    known, outage = was_known, error
                    if in_the_way is None:
                        raise  # before the first answer, down is down
                except ConfigurationError:
                    known = was_known  # refused, so nothing has changed
                    raise
                except QuorumError as error:
                    outage = error
                    if in_the_way is None:
                        raise
                except OutcomeUnknown as error:
                    if in_the_way is None and outage is not None:
                        raise
                    # A lost reply: the next round asks again, which is the same question. At once if the backend has
                    # not used up its time, as on a connection that may have vanished: the next one is new.
                    is_first, outage = outage is None, error
                    if is_first and self.runtime.now() < limit:
                        continue
                else:
                    if self._required is not None:
                        await self._check_promises(self._required, ticket, give_up)
                    if isinstance(outcome, Waiting):
                        if self.events.subscribers and in_the_way is None:
                            self.emit(Event("waiting", terms.name, reason=outcome.holder))
                        in_the_way, outage, pause = outcome, None, OUTAGE_PAUSE_MIN
                    elif (since := self.runtime.now()) < outcome.deadline - terms.margin:
                        hold = self._lease_type(self, terms, ticket, outcome, since, owner, lock)
                        self._publish(hold, lock, owner)
                        if self._closed:  # close() may have looked before it was published, and have left too early
                            await self._withdraw(ticket, give_up)
                            raise UsageError("the client was closed while this was on its way")
                        if self.events.subscribers:
                            self.emit(Event("acquired", terms.name, hold.fence, since - started))
                        self._taking.pop(ticket.nonce, None)
                        return Attempt(hold)
                    else:
                        # The answer came after the deadline: not a grant. Give back and go on.
                        self._keeper.owe(ticket)
                        del self._taking[ticket.nonce]
                        ticket, known = self._ticket(terms), False
                        self._taking[ticket.nonce] = ticket
                        outage = self._unavailable("its answer came after the lease's deadline")
                now = self.runtime.now()
                if now >= give_up or lock._given_up or self._closed:
                    break
                if outage is not None:
                    await self.runtime.sleep(min(pause, give_up - now))
                    pause = min(2 * pause, OUTAGE_PAUSE_MAX)
                elif in_the_way is not None:
                    await self._keeper.pay_if_alone(now + IO_TIMEOUT_MIN)
                    await self._wait(ticket, min(give_up, now + in_the_way.look_again_in))
                limit = self._limit(give_up)
            if self._closed:
                await self._withdraw(ticket, give_up)
                raise UsageError("the client was closed while this waited")
            if outage is not None:
                raise outage  # busy and down never look alike
            if timeout != 0:
                await self._withdraw(ticket, give_up)
            self._taking.pop(ticket.nonce, None)
            return Attempt(None, in_the_way.holder if in_the_way else None, self.runtime.now() - started)
        except BaseException as error:
            if hold is not None:
                self._unpublish(hold, RELEASED)
            if known:
                self._keeper.owe(ticket)
            self._taking.pop(ticket.nonce, None)
            if isinstance(error, ThreadStartError):
                await self._withdraw(ticket, give_up)  # there may be no keeper to do it
            raise

    def publish(self, lock: Handle[L], ticket: Ticket, granted: Granted, owner: Owner, holds: list[L]) -> None:
        """One of several locks that were entered at once: its lease, into `holds`, from before it counts.

        Raises:
            OutcomeUnknown: the answer came after the lease's deadline, so it is not a grant.
        """
        terms, since = lock._terms, self.runtime.now()
        if since >= granted.deadline - terms.margin:
            raise OutcomeUnknown(backend=self.backend.url, problem="its answer came after the lease's deadline")
        holds.append(self._lease_type(self, terms, ticket, granted, since, owner, lock))
        self._publish(holds[-1], lock, owner)
        if self._closed:
            raise UsageError("the client was closed while this was on its way")
        if self.events.subscribers:
            self.emit(Event("acquired", terms.name, granted.fence, 0.0))

    async def _check_promises(self, required: Required, ticket: Ticket, give_up: float) -> None:
        """After the answer, because servers say only when asked what they promise; each time, because that changes."""
        try:
            required.insist(self.backend.url, self.backend.guarantees)
        except ConfigurationError:
            await self._withdraw(ticket, give_up)
            raise

    async def _wait(self, ticket: Ticket, until: float) -> None:
        await self.backend.wait(ticket, until)

    def _held_by(self, owner: Owner, terms: Terms) -> L | None:
        key = (self._serial, terms.name)
        ref = owner.holds.get(key)
        if ref is None:
            return None
        held: L | None = ref()
        if held is None:
            owner.holds.pop(key, None)
        return held if held is not None and held.held else None

    async def _reenter(self, held: L, lock: Handle[L], owner: Owner, timeout: float | None) -> Attempt[L]:
        """The owner has it already: count, if both sides agreed to that and the old lease covers the new claim."""
        terms = lock._terms
        if terms.reentrant and held._terms.reentrant and (held._terms.exclusive or not terms.exclusive):
            attempt: Attempt[L] | None = None
            try:
                with self.mutex:
                    if held._phase is HELD:
                        lock._keep(owner, held)
                        attempt = Attempt(held)
                        held._depth += 1
            except BaseException:
                if attempt is not None:  # an interrupt after it was counted: the caller never gets to count it back
                    held._depth -= 1
                raise
            if attempt is not None:
                return attempt
        if timeout == 0:
            return Attempt(None, holder="this thread or task itself")
        if terms.exclusive and not held._terms.exclusive:
            reason = "a reader cannot become the writer; release the read lease first"
        elif held._terms.reentrant or terms.reentrant:
            reason = "it was not taken with reentrant=True by both"
        else:
            reason = "waiting would never end; pass reentrant=True to count instead"
        raise WouldDeadlock(lock=terms.name, fence=held.fence, reason=reason)

    def _publish(self, hold: L, lock: Handle[L], owner: Owner) -> None:
        terms, ref = hold._terms, weakref.ref(hold)
        hold._phase = HELD
        if terms.exclusive or terms.limit is None:  # not one of several permits that an owner may take at once
            owner.holds[self._serial, terms.name] = ref
        lock._keep(owner, hold)
        self._holds[hold._ticket.nonce] = ref  # one step, whatever other threads do
        self._keeper.add(hold, ref)
        if self._is_told and not self.backend.intact(hold._store):
            self.lose(hold, STORE_GONE)  # it ended before this lease was published

    def _unpublish(self, hold: L, phase: Phase) -> None:
        with self.mutex:
            hold._phase = phase
            self._holds.pop(hold._ticket.nonce, None)
        self._forget(hold)

    def _forget(self, hold: Hold) -> None:
        """Nobody but the user's own variable refers to this lease any more."""
        owner = hold._owner()
        if owner is None:
            return
        key = (self._serial, hold._terms.name)
        ref = owner.holds.get(key)
        if ref is not None and ref() in (hold, None):
            owner.holds.pop(key, None)
        lock = hold._lock()
        if lock is not None:
            lock._drop(owner, hold)

    async def _withdraw(self, ticket: Ticket, give_up: float) -> None:
        try:
            (was_ours,) = await self.backend.leave([ticket], deadline=self._limit(give_up))
            if isinstance(was_ours, BackendError):
                raise was_ours
        except BackendError:
            self._keeper.owe(ticket)  # the caller's answer does not change: the lock was busy
        else:
            self._keeper.forgive(ticket)

    def _ticket(self, terms: Terms) -> Ticket:
        runtime, delay = self.runtime, terms.lock_delay
        about, info = self._last_info
        if about is not terms.about:
            info = f'{{"who": {self._who}, {terms.about}}}'
            self._last_info = (terms.about, info)
        return Ticket(
            terms.name,
            runtime.nonce(),
            terms.ttl + delay,
            terms.limit,
            terms.exclusive,
            runtime.agent(),
            info,
            delay,
            terms.owner,
        )

    # ── release, renew, lose ─────────────────────────────────────────────────────────────────────────────────────

    async def release(self, hold: L) -> None:
        """Give it back; inner releases of a re-entered lease only count.

        Raises:
            NotHeld: it was released before.
            LockLost: it had ended or was taken before this release.
            BackendError: no answer; the keeper goes on trying, and so may the caller.
        """
        if hold.lost:
            self._end_lost(hold)
        if hold._phase is HELD and hold._depth > 1:
            hold._depth -= 1  # no call follows: an interrupt comes before this, or after the release
            return
        repeated = begun = False
        try:
            with self.mutex:
                if hold._phase is HELD or hold._phase is OWED:
                    repeated = hold._phase is OWED
                    begun = True
                    hold._phase = RELEASING
            if not begun:
                if hold._phase is LOST:  # since it was found not to be
                    self._end_lost(hold)
                raise NotHeld(lock=hold.name, reason=hold._reason or f"this lease was {hold._phase.value} already")
            was_ours = (await self.backend.leave([hold._ticket], deadline=self._limit()))[0]
            if isinstance(was_ours, BackendError):
                raise was_ours
            if repeated:
                self._keeper.forgive(hold._ticket)
            elif not was_ours:
                self.gone(hold)
                raise hold._loss()
            self._unpublish(hold, RELEASED)
        except BaseException:
            # The nonce stays until the server has answered: the keeper repeats, and so may the caller.
            if begun and hold._phase is RELEASING:
                self.owe(hold)
            raise
        if hold._lost_event is not None:
            hold._lost_event.set()  # who waits for a loss need not wait any longer
        if self.events.subscribers:
            held_for = self.runtime.now() - hold._since
            self.emit(Event("released", hold.name, hold.fence, held_for))

    def gone(self, hold: L) -> None:
        """The server's answer to a release: it was not ours any more."""
        hold._reason = Gone().reason
        self._unpublish(hold, LOST)
        self._tell_lost(hold)

    def give_back(self, hold: L, reason: str = "") -> None:
        """Nobody works under it: it ends here and now, and goes off the server as soon as that answers."""
        if self._end(hold, reason):
            self._keeper.owe(hold._ticket)

    def _end(self, hold: L, reason: str) -> bool:
        """It ends here and now, without a request; False if it had ended before."""
        with self.mutex:
            if hold._phase is not HELD:
                return False
            hold._phase, hold._reason = RELEASED, reason
        self._unpublish(hold, RELEASED)
        if hold._lost_event is not None:
            hold._lost_event.set()
        return True

    def owe(self, hold: L) -> None:
        """Its holder is done with it, but the server may not know yet: leave that to the keeper."""
        hold._phase = OWED
        self._keeper.owe(hold._ticket)
        if hold._lost_event is not None:
            hold._lost_event.set()

    def _end_lost(self, hold: L) -> NoReturn:
        with self.mutex:
            is_inner = hold._depth > 1
            hold._depth -= is_inner
        if not is_inner:
            self._forget(hold)
            # The body is over: no need to wait for the deadline of a stop margin.
            self._keeper.owe(hold._ticket, after=self._delayed(hold))
        raise hold._loss()

    async def leave_body(self, hold: L) -> None:
        """Release at the end of a `with` body, which ran under the lock to its end if this returns.

        A release that gets no answer is not the body's problem: the keeper repeats it, the ttl is the backstop.

        Raises:
            LockLost: the lease ended before the body did.
        """
        try:
            await self.release(hold)
        except BackendError as error:
            logger().warning("release of %r got no answer, trying again in the background: %s", hold.name, error)

    def interrupted_leaving(self, hold: L) -> None:
        """A KeyboardInterrupt hit `__exit__`; if before the release took effect, the body is over all the same."""
        if hold._phase is HELD:
            if hold._depth > 1:
                hold._depth -= 1
            else:
                self.owe(hold)

    async def renew(self, *holds: L) -> None:
        """Prolong these leases now.

        Raises:
            LockLost, NotHeld: there is nothing to prolong.
            BackendError: no answer; the old deadline still stands.
        """
        for hold in holds:
            hold.check()
        outcomes = await self.backend.renew([hold._ticket for hold in holds], deadline=self._limit())
        for hold, outcome in zip(holds, outcomes, strict=True):
            if isinstance(outcome, Gone):
                self.lose(hold, outcome.reason)
            elif not isinstance(outcome, BackendError):
                self.renewed(hold, outcome.deadline)
        for hold, outcome in zip(holds, outcomes, strict=True):
            if isinstance(outcome, BackendError):
                raise outcome
            hold.check()

    def renewed(self, hold: Hold, deadline: float) -> None:
        """The server has prolonged it; never shortens, never revives."""
        now = self.runtime.now()
        with self.mutex:
            if hold._phase is not HELD or now >= hold._stop_at:
                return  # lost or given back meanwhile: the alarm or the release deals with the ticket
            deadline = before_delay(deadline, hold._terms.lock_delay)
            left = hold._deadline - now
            hold._deadline = max(hold._deadline, hold._bounded(deadline))
            hold._renew_at = next_renewal(now, deadline)
        self._report(Event("renewed", hold.name, hold.fence, left))

    def lose(self, hold: Hold, reason: str) -> None:
        """End the lease without a release: told exactly once, whoever finds out first."""
        if self.runtime.hand_in(lambda: self.lose(hold, reason)):
            return
        with self.mutex:
            if hold._phase is not HELD:
                return
            hold._phase = LOST
            hold._reason = reason
            self._holds.pop(hold._ticket.nonce, None)
        # Off the server, but not before the deadline: with a stop margin the body still has until then. And not before
        # the lock's delay is over.
        after = self._delayed(hold) or (hold._deadline if hold._terms.stop_margin else 0)
        self._keeper.owe(hold._ticket, after=after, owner=hold._owner)
        self._tell_lost(hold)

    def _store_gone(self, store: Hashable, reason: str) -> None:
        """All leases that it has granted are lost: reported now, not at their next renewal."""
        for ref in list(self._holds.values()):
            hold = ref()
            if hold is not None and hold._store is store:
                self.lose(hold, reason)

    def _delayed(self, hold: Hold) -> float:
        """Until when a lost lease keeps others out; 0 if it does not."""
        delay = hold._terms.lock_delay
        return hold._deadline + delay if delay else 0.0

    def _tell_lost(self, hold: Hold) -> None:
        """The holder first: event, cancellation, callback. Subscribers and log handlers are called elsewhere, later."""
        held_for = self.runtime.now() - hold._since
        if hold._lost_event is not None:
            hold._lost_event.set()
        if hold._hook is not None:
            hold._hook()
        on_lost = hold._terms.on_lost
        if callable(on_lost):
            self.runtime.call(lambda: on_lost(hold))
        self._report(Event("lost", hold.name, hold.fence, held_for, hold._reason))
        logger().warning("lock %r (fence %d) was lost after %.3f s: %s", hold.name, hold.fence, held_for, hold._reason)

    def emit(self, event: Event) -> None:
        """Pass on an event of a caller, who may wait for the subscribers."""
        self.events.emit(event, self.runtime, here=True)

    def _report(self, event: Event) -> None:
        """Pass on an event that the keeper may have found, which must not wait for the subscribers."""
        self.events.emit(event, self.runtime, here=False)

    async def wait_lost(self, hold: Hold, timeout: float | None) -> bool:
        """True as soon as the lease is lost; False when the time is up or it was released."""
        until = None if timeout is None else self.runtime.now() + timeout
        while not hold.lost:
            with self.mutex:
                if hold._phase is not HELD:
                    return False
                if hold._lost_event is None:
                    hold._lost_event = self.runtime.event()
                event = hold._lost_event
            # The keeper sets it at the deadline; looking at the clock as well costs nothing.
            wake_at = hold._stop_at if until is None else min(until, hold._stop_at)
            await event.wait(wake_at)
            if until is not None and self.runtime.now() >= until:
                return hold.lost
        return True

    def revoke_requested(self, hold: Hold) -> None:
        """Somebody asks for this lease: told once."""
        with self.mutex:
            if hold._phase is not HELD or hold._revoke_requested:
                return
            hold._revoke_requested = True
        on_revoke = hold._terms.on_revoke
        if on_revoke is not None:
            self.runtime.call(lambda: on_revoke(hold))
        self._report(Event("revoke requested", hold.name, hold.fence))

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, give_up: float = _FOREVER) -> LockInfo:
        try:
            return await self.backend.inspect(name, deadline=self._limit(give_up))
        except StoreMissing:
            if self.needs_store:
                raise
            return LockInfo(name, (), ())

    async def locks(self, prefix: str) -> list[LockInfo]:
        try:
            return await self.backend.locks(prefix, deadline=self._limit())
        except StoreMissing:
            if self.needs_store:
                raise
            return []

    def listing(self, prefix: str) -> Listing | None:
        """For a caller that shows how far a long search is; None where `locks` does not have to search."""
        if isinstance(self.backend, ListsBySearch):
            return self.backend.listing(prefix, io_timeout=self.io_timeout)
        return None

    async def break_lock(self, name: str, fence: int) -> bool:
        try:
            return await self.backend.break_lock(name, fence, deadline=self._limit())
        except StoreMissing:
            if self.needs_store:
                raise
            return False

    async def request_revoke(self, name: str, fence: int | None) -> bool:
        """Ask the lease with this fence, or whoever holds it now, to let go; False if nobody does."""
        fences = [holder.fence for holder in (await self.inspect(name)).holders if holder.fence]
        # The request reaches every lease up to that fence: one that no holder has would reach all later ones.
        if not fences or (fence is not None and fence not in fences):
            return False
        fence = max(fences) if fence is None else fence
        nonce, keep = self.runtime.nonce(), REQUEST_KEPT
        await self.backend.mark(REVOKED + name, fence, nonce=nonce, keep=keep, deadline=self._limit())
        return True

    async def requests(self, holds: Sequence[Hold], deadline: float) -> list[bool]:
        """Which of these leases are asked for."""
        marks = await self.backend.marks([REVOKED + hold.name for hold in holds], deadline=deadline)
        return [mark >= hold.fence for hold, mark in zip(holds, marks, strict=True)]

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Release what is held, withdraw what waits, pay what is owed, as far as the server answers; then let go."""
        self._closed = True
        self.closing.set()
        for ref in list(self._holds.values()):  # one step
            hold = ref()
            if hold is not None:
                self.give_back(hold, _CLIENT_CLOSED)
        for ticket in list(self._taking.values()):
            self._keeper.owe(ticket)
        await self._keeper.pay_all(self._limit(), lambda _: True)
        self._keeper.stop()
        await self.runtime.join()
        await self.backend.close()

    @property
    def is_idle(self) -> bool:
        """No lease is held, requested, or to be released."""
        return not self._holds and not self._taking and self._keeper.has_nothing_pending

    def end_leases(self) -> list[Ticket]:
        """At the end of the process: end the leases whose thread or task has ended, and return the tickets to release.

        No request is made here, so that no code believes that it holds a lease while `release_ended` releases it. The
        leases of other threads are not touched: their code may still run.
        """
        if self._closed:
            return []
        ended: list[Ticket] = []
        for ref in list(self._holds.values()):  # one step
            hold = ref()
            if hold is not None and self.runtime.has_ended(hold._owner()) and self._end(hold, _PROCESS_ENDS):
                ended.append(hold._ticket)
        return ended + self._keeper.pending(self.runtime.has_ended)

    async def release_ended(self, tickets: Sequence[Ticket], deadline: float, backend: Backend | None = None) -> int:
        """Release tickets of `end_leases`, on another backend if this one's cannot be used; how many got no answer.

        Each is tried once. The ttl ends the others.
        """
        silent = 0
        for start in range(0, len(tickets), BATCH_MAX):
            batch = tickets[start : start + BATCH_MAX]
            try:
                outcomes = await (backend or self.backend).leave(batch, deadline=deadline)
            except HoldfastError as error:
                logger().info("%d lease(s) were not released at the end of the process: %s", len(batch), error)
                silent += len(batch)
            else:
                silent += sum(isinstance(outcome, BackendError) for outcome in outcomes)
        return silent

    def abandon(self, reason: str) -> None:
        """In a forked child: no lease of the parent is ours, no connection of the parent is spoken on.

        No mutex is taken: another thread of the parent may have held it when the child was made, so there is a new one.
        """
        for ref in list(self._holds.values()):
            hold = ref()
            if hold is not None and hold._phase is not RELEASED:
                hold._phase, hold._reason = LOST, reason
        self.mutex = self.runtime.mutex()
        self._keeper.abandon(self.mutex)
        self.backend.abandon()

    def dropped(self, hold: Hold) -> None:
        """Nobody refers to this lease any more, and it was not released; a weak reference to it is dead by now."""
        self._holds.pop(hold._ticket.nonce, None)
        if hold._phase is HELD:
            self._keeper.drop(hold._ticket, hold._deadline + hold._terms.lock_delay, hold._owner)
            warnings.warn(
                f"the lease of lock {hold.name!r} (fence {hold.fence}) was dropped without release(): it is renewed no "
                f"more and keeps others out until its ttl of {hold.ttl:g} s is over",
                ResourceWarning,
                stacklevel=3,
            )

    def _limit(self, give_up: float = _FOREVER) -> float:
        now = self.runtime.now()
        if give_up == _FOREVER:
            return now + self.io_timeout
        return min(now + self.io_timeout, max(give_up, now + IO_TIMEOUT_MIN))

    def _unavailable(self, problem: str) -> BackendUnavailable:
        return BackendUnavailable(backend=self.backend.url, problem=problem)
