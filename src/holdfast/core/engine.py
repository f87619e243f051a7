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
from holdfast.core.keeper import BATCH_MAX, Keeper
from holdfast.core.leases import (
    HELD,
    LOST,
    RELEASED,
    RELEASING,
    STORE_GONE,
    UNCONFIRMED,
    BaseLease,
    LockSpec,
    Phase,
    next_renewal,
)
from holdfast.core.ports import ListsBySearch, ReportsGone, StoreMissing
from holdfast.core.tickets import LeaseGone, LockInfo, Ticket, Waiting
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
    from holdfast.core.ports import Backend, Caller, Listing, Runtime
    from holdfast.core.tickets import Granted
    from holdfast.guarantees import Guarantees

L = TypeVar("L", bound=BaseLease)
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


class AcquireResult(NamedTuple, Generic[T]):
    """What came of an acquire: the lease, or who was in the way when the time was up."""

    lease: T | None
    holder: str | None = None
    waited: float = 0.0


class Required(Protocol):
    """The least that a program asks of its store."""

    def require(self, url: str, guarantees: Guarantees) -> None:
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
        self._process_info = runtime.process_info()
        self._last_info = ("", "")  # what a lock tells of itself, and what tickets say with it: mostly as the last time
        self._leases: dict[str, weakref.ref[L]] = {}  # by nonce, in the order of their grants
        self._taking: dict[str, Ticket] = {}  # what acquires are about: the server may know these already
        self._keeper = Keeper(self)
        self._closed = False
        self._is_told = isinstance(backend, ReportsGone)
        if isinstance(backend, ReportsGone):
            backend.on_gone(self._store_gone)

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    def acquire(
        self, lock: BaseLock[L], timeout: float | None, caller: Caller | None = None
    ) -> Coroutine[Any, Any, AcquireResult[L]]:
        """Take the lock, or wait for it until the time is up; for the thread or task that calls this, or `caller`.

        Raises:
            WouldDeadlock: the caller holds it already, in a way that keeps this claim out.
            LimitConflict: it is in use with another limit.
            BackendUnavailable, OutcomeUnknown: the server could not be asked, at first or when the time was up.
        """
        current = self.runtime.caller()
        claimant = caller or current
        held = self._held_by(claimant, lock._spec)
        if held is not None and claimant is not current and not lock._spec.reentrant:
            held = None  # this runs in a task of its own, which may wait until the calling task has released it
        return self._take(lock, claimant, timeout) if held is None else self._reenter(held, lock, claimant, timeout)

    async def _take(self, lock: BaseLock[L], caller: Caller, timeout: float | None) -> AcquireResult[L]:
        spec = lock._spec
        started = self.runtime.now()
        give_up = _FOREVER if timeout is None else started + timeout
        ticket = self._ticket(spec)
        lease: L | None = None
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
                    outcome = await self.backend.try_acquire(ticket, queue=timeout != 0, deadline=limit)
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
                            self.emit(Event("waiting", spec.name, reason=outcome.holder))
                        in_the_way, outage, pause = outcome, None, OUTAGE_PAUSE_MIN
                    elif (since := self.runtime.now()) < outcome.deadline - spec.margin:
                        lease = self._lease_type(self, spec, ticket, outcome, since, caller, lock)
                        self._publish(lease, lock, caller)
                        if self._closed:  # close() may have looked before it was published, and have left too early
                            await self._withdraw(ticket, give_up)
                            raise UsageError("the client was closed while this was on its way")
                        if self.events.subscribers:
                            self.emit(Event("acquired", spec.name, lease.fence, since - started))
                        self._taking.pop(ticket.nonce, None)
                        return AcquireResult(lease)
                    else:
                        # The answer came after the deadline: not a grant. Give back and go on.
                        self._keeper.schedule(ticket)
                        del self._taking[ticket.nonce]
                        ticket, known = self._ticket(spec), False
                        self._taking[ticket.nonce] = ticket
                        outage = self._unavailable("its answer came after the lease's deadline")
                now = self.runtime.now()
                if now >= give_up or lock._given_up or self._closed:
                    break
                if outage is not None:
                    await self.runtime.sleep(min(pause, give_up - now))
                    pause = min(2 * pause, OUTAGE_PAUSE_MAX)
                elif in_the_way is not None:
                    await self._keeper.flush_without_timer(now + IO_TIMEOUT_MIN)
                    await self._wait(ticket, min(give_up, now + in_the_way.poll_after))
                limit = self._limit(give_up)
            if self._closed:
                await self._withdraw(ticket, give_up)
                raise UsageError("the client was closed while this waited")
            if outage is not None:
                raise outage  # busy and down never look alike
            if timeout != 0:
                await self._withdraw(ticket, give_up)
            self._taking.pop(ticket.nonce, None)
            return AcquireResult(None, in_the_way.holder if in_the_way else None, self.runtime.now() - started)
        except BaseException as error:
            if lease is not None:
                self._unpublish(lease, RELEASED)
            if known:
                self._keeper.schedule(ticket)
            self._taking.pop(ticket.nonce, None)
            if isinstance(error, ThreadStartError):
                await self._withdraw(ticket, give_up)  # there may be no keeper to do it
            raise

    def publish(self, lock: BaseLock[L], ticket: Ticket, granted: Granted, caller: Caller, leases: list[L]) -> None:
        """One of several locks that were entered at once: its lease, into `leases`, from before it counts.

        Raises:
            OutcomeUnknown: the answer came after the lease's deadline, so it is not a grant.
        """
        spec, since = lock._spec, self.runtime.now()
        if since >= granted.deadline - spec.margin:
            raise OutcomeUnknown(backend=self.backend.url, problem="its answer came after the lease's deadline")
        leases.append(self._lease_type(self, spec, ticket, granted, since, caller, lock))
        self._publish(leases[-1], lock, caller)
        if self._closed:
            raise UsageError("the client was closed while this was on its way")
        if self.events.subscribers:
            self.emit(Event("acquired", spec.name, granted.fence, 0.0))

    async def _check_promises(self, required: Required, ticket: Ticket, give_up: float) -> None:
        """After the answer, because servers say only when asked what they promise; each time, because that changes."""
        try:
            required.require(self.backend.url, self.backend.guarantees)
        except ConfigurationError:
            await self._withdraw(ticket, give_up)
            raise

    async def _wait(self, ticket: Ticket, until: float) -> None:
        await self.backend.wait(ticket, until)

    def _held_by(self, caller: Caller, spec: LockSpec) -> L | None:
        key = (self._serial, spec.name)
        ref = caller.leases.get(key)
        if ref is None:
            return None
        held: L | None = ref()
        if held is None:
            caller.leases.pop(key, None)
        return held if held is not None and held.held else None

    async def _reenter(self, held: L, lock: BaseLock[L], caller: Caller, timeout: float | None) -> AcquireResult[L]:
        """The owner has it already: count, if both sides agreed to that and the old lease covers the new claim."""
        spec = lock._spec
        if spec.reentrant and held._spec.reentrant and (held._spec.exclusive or not spec.exclusive):
            attempt: AcquireResult[L] | None = None
            try:
                with self.mutex:
                    if held._phase is HELD:
                        lock._keep(caller, held)
                        attempt = AcquireResult(held)
                        held._depth += 1
            except BaseException:
                if attempt is not None:  # an interrupt after it was counted: the caller never gets to count it back
                    held._depth -= 1
                raise
            if attempt is not None:
                return attempt
        if timeout == 0:
            return AcquireResult(None, holder="this thread or task itself")
        if spec.exclusive and not held._spec.exclusive:
            reason = "a reader cannot become the writer; release the read lease first"
        elif held._spec.reentrant or spec.reentrant:
            reason = "it was not taken with reentrant=True by both"
        else:
            reason = "waiting would never end; pass reentrant=True to count instead"
        raise WouldDeadlock(lock=spec.name, fence=held.fence, reason=reason)

    def _publish(self, lease: L, lock: BaseLock[L], caller: Caller) -> None:
        spec, ref = lease._spec, weakref.ref(lease)
        lease._phase = HELD
        if spec.exclusive or spec.limit is None:  # not one of several permits that an owner may take at once
            caller.leases[self._serial, spec.name] = ref
        lock._keep(caller, lease)
        self._leases[lease._ticket.nonce] = ref  # one step, whatever other threads do
        self._keeper.add(lease, ref)
        if self._is_told and not self.backend.intact(lease._store):
            self.lose(lease, STORE_GONE)  # it ended before this lease was published

    def _unpublish(self, lease: L, phase: Phase) -> None:
        with self.mutex:
            lease._phase = phase
            self._leases.pop(lease._ticket.nonce, None)
        self._forget(lease)

    def _forget(self, lease: BaseLease) -> None:
        """Nobody but the user's own variable refers to this lease any more."""
        caller = lease._caller_ref()
        if caller is None:
            return
        key = (self._serial, lease._spec.name)
        ref = caller.leases.get(key)
        if ref is not None and ref() in (lease, None):
            caller.leases.pop(key, None)
        lock = lease._lock()
        if lock is not None:
            lock._drop(caller, lease)

    async def _withdraw(self, ticket: Ticket, give_up: float) -> None:
        try:
            (was_ours,) = await self.backend.release([ticket], deadline=self._limit(give_up))
            if isinstance(was_ours, BackendError):
                raise was_ours
        except BackendError:
            self._keeper.schedule(ticket)  # the caller's answer does not change: the lock was busy
        else:
            self._keeper.cancel(ticket)

    def _ticket(self, spec: LockSpec) -> Ticket:
        runtime, delay = self.runtime, spec.lock_delay
        about, info = self._last_info
        if about is not spec.about:
            info = f'{{"who": {self._process_info}, {spec.about}}}'
            self._last_info = (spec.about, info)
        return Ticket(
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

    # ── release, renew, lose ─────────────────────────────────────────────────────────────────────────────────────

    async def release(self, lease: L) -> None:
        """Give it back; inner releases of a re-entered lease only count.

        Raises:
            NotHeld: it was released before.
            LockLost: it had ended or was taken before this release.
            BackendError: no answer; the keeper goes on trying, and so may the caller.
        """
        if lease.lost:
            self._end_lost(lease)
        if lease._phase is HELD and lease._depth > 1:
            lease._depth -= 1  # no call follows: an interrupt comes before this, or after the release
            return
        repeated = begun = False
        try:
            with self.mutex:
                if lease._phase is HELD or lease._phase is UNCONFIRMED:
                    repeated = lease._phase is UNCONFIRMED
                    begun = True
                    lease._phase = RELEASING
            if not begun:
                if lease._phase is LOST:  # since it was found not to be
                    self._end_lost(lease)
                raise NotHeld(lock=lease.name, reason=lease._reason or f"this lease was {lease._phase.value} already")
            was_ours = (await self.backend.release([lease._ticket], deadline=self._limit()))[0]
            if isinstance(was_ours, BackendError):
                raise was_ours
            if repeated:
                self._keeper.cancel(lease._ticket)
            elif not was_ours:
                self.lease_gone(lease)
                raise lease._loss()
            self._unpublish(lease, RELEASED)
        except BaseException:
            # The nonce stays until the server has answered: the keeper repeats, and so may the caller.
            if begun and lease._phase is RELEASING:
                self.owe(lease)
            raise
        if lease._lost_event is not None:
            lease._lost_event.set()  # who waits for a loss need not wait any longer
        if self.events.subscribers:
            held_for = self.runtime.now() - lease._since
            self.emit(Event("released", lease.name, lease.fence, held_for))

    def lease_gone(self, lease: L) -> None:
        """The server's answer to a release: it was not ours any more."""
        lease._reason = LeaseGone().reason
        self._unpublish(lease, LOST)
        self._report_lost(lease)

    def give_back(self, lease: L, reason: str = "") -> None:
        """Nobody works under it: it ends here and now, and goes off the server as soon as that answers."""
        if self._end(lease, reason):
            self._keeper.schedule(lease._ticket)

    def _end(self, lease: L, reason: str) -> bool:
        """It ends here and now, without a request; False if it had ended before."""
        with self.mutex:
            if lease._phase is not HELD:
                return False
            lease._phase, lease._reason = RELEASED, reason
        self._unpublish(lease, RELEASED)
        if lease._lost_event is not None:
            lease._lost_event.set()
        return True

    def owe(self, lease: L) -> None:
        """Its holder is done with it, but the server may not know yet: leave that to the keeper."""
        lease._phase = UNCONFIRMED
        self._keeper.schedule(lease._ticket)
        if lease._lost_event is not None:
            lease._lost_event.set()

    def _end_lost(self, lease: L) -> NoReturn:
        with self.mutex:
            is_inner = lease._depth > 1
            lease._depth -= is_inner
        if not is_inner:
            self.end_lost_body(lease)
        raise lease._loss()

    def end_lost_body(self, lease: L) -> None:
        """The body of a lost lease has ended, so the release does not wait for the deadline of a stop margin."""
        self._forget(lease)
        self._keeper.schedule(lease._ticket, after=self._delayed(lease))

    async def release_after_body(self, lease: L) -> None:
        """Release at the end of a `with` body, which ran under the lock to its end if this returns.

        A release that gets no answer is not the body's problem: the keeper repeats it, the ttl is the backstop.

        Raises:
            LockLost: the lease ended before the body did.
        """
        try:
            await self.release(lease)
        except BackendError as error:
            logger().warning("release of %r got no answer, trying again in the background: %s", lease.name, error)

    def interrupted_exit(self, lease: L) -> None:
        """A KeyboardInterrupt hit `__exit__`; if before the release took effect, the body is over all the same."""
        if lease._phase is HELD:
            if lease._depth > 1:
                lease._depth -= 1
            else:
                self.owe(lease)

    async def renew(self, *leases: L) -> None:
        """Prolong these leases now.

        Raises:
            LockLost, NotHeld: there is nothing to prolong.
            BackendError: no answer; the old deadline still stands.
        """
        for lease in leases:
            lease.check()
        outcomes = await self.backend.renew([lease._ticket for lease in leases], deadline=self._limit())
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, LeaseGone):
                self.lose(lease, outcome.reason)
            elif not isinstance(outcome, BackendError):
                self.renewed(lease, outcome.deadline)
        for lease, outcome in zip(leases, outcomes, strict=True):
            if isinstance(outcome, BackendError):
                raise outcome
            lease.check()

    def renewed(self, lease: BaseLease, deadline: float) -> None:
        """The server has prolonged it; never shortens, never revives."""
        now = self.runtime.now()
        with self.mutex:
            if lease._phase is not HELD or now >= lease._stop_at:
                return  # lost or given back meanwhile: the alarm or the release deals with the ticket
            deadline = before_delay(deadline, lease._spec.lock_delay)
            left = lease._deadline - now
            lease._deadline = max(lease._deadline, lease._bounded(deadline))
            lease._renew_at = next_renewal(now, deadline)
        self._report(Event("renewed", lease.name, lease.fence, left))

    def lose(self, lease: BaseLease, reason: str) -> None:
        """End the lease without a release: told exactly once, whoever finds out first."""
        if self.runtime.run_in_loop(lambda: self.lose(lease, reason)):
            return
        with self.mutex:
            if lease._phase is not HELD:
                return
            lease._phase = LOST
            lease._reason = reason
            self._leases.pop(lease._ticket.nonce, None)
        # Off the server, but not before the deadline: with a stop margin the body still has until then. And not before
        # the lock's delay is over.
        after = self._delayed(lease) or (lease._deadline if lease._spec.stop_margin else 0)
        self._keeper.schedule(lease._ticket, after=after, caller=lease._caller_ref)
        self._report_lost(lease)

    def _store_gone(self, store: Hashable, reason: str) -> None:
        """All leases that it has granted are lost: reported now, not at their next renewal."""
        for ref in list(self._leases.values()):
            lease = ref()
            if lease is not None and lease._store is store:
                self.lose(lease, reason)

    def _delayed(self, lease: BaseLease) -> float:
        """Until when a lost lease keeps others out; 0 if it does not."""
        delay = lease._spec.lock_delay
        return lease._deadline + delay if delay else 0.0

    def _report_lost(self, lease: BaseLease) -> None:
        """The holder first: event, cancellation, callback. Subscribers and log handlers are called elsewhere, later."""
        held_for = self.runtime.now() - lease._since
        if lease._lost_event is not None:
            lease._lost_event.set()
        if lease._hook is not None:
            lease._hook()
        on_lost = lease._spec.on_lost
        if callable(on_lost):
            self.runtime.call(lambda: on_lost(lease))
        self._report(Event("lost", lease.name, lease.fence, held_for, lease._reason))
        logger().warning(
            "lock %r (fence %d) was lost after %.3f s: %s", lease.name, lease.fence, held_for, lease._reason
        )

    def emit(self, event: Event) -> None:
        """Pass on an event of a caller, who may wait for the subscribers."""
        self.events.emit(event, self.runtime, here=True)

    def _report(self, event: Event) -> None:
        """Pass on an event that the keeper may have found, which must not wait for the subscribers."""
        self.events.emit(event, self.runtime, here=False)

    async def wait_lost(self, lease: BaseLease, timeout: float | None) -> bool:
        """True as soon as the lease is lost; False when the time is up or it was released."""
        until = None if timeout is None else self.runtime.now() + timeout
        while not lease.lost:
            with self.mutex:
                if lease._phase is not HELD:
                    return False
                if lease._lost_event is None:
                    lease._lost_event = self.runtime.event()
                event = lease._lost_event
            # The keeper sets it at the deadline; looking at the clock as well costs nothing.
            wake_at = lease._stop_at if until is None else min(until, lease._stop_at)
            await event.wait(wake_at)
            if until is not None and self.runtime.now() >= until:
                return lease.lost
        return True

    def revoke_requested(self, lease: BaseLease) -> None:
        """Somebody asks for this lease: told once."""
        with self.mutex:
            if lease._phase is not HELD or lease._revoke_requested:
                return
            lease._revoke_requested = True
        on_revoke = lease._spec.on_revoke
        if on_revoke is not None:
            self.runtime.call(lambda: on_revoke(lease))
        self._report(Event("revoke requested", lease.name, lease.fence))

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
        await self.backend.advance_register(REVOKED + name, fence, nonce=nonce, keep=keep, deadline=self._limit())
        return True

    async def requests(self, leases: Sequence[BaseLease], deadline: float) -> list[bool]:
        """Which of these leases are asked for."""
        marks = await self.backend.read_registers([REVOKED + lease.name for lease in leases], deadline=deadline)
        return [mark >= lease.fence for lease, mark in zip(leases, marks, strict=True)]

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Release what is held, withdraw what waits, pay what is owed, as far as the server answers; then let go."""
        self._closed = True
        self.closing.set()
        for ref in list(self._leases.values()):  # one step
            lease = ref()
            if lease is not None:
                self.give_back(lease, _CLIENT_CLOSED)
        for ticket in list(self._taking.values()):
            self._keeper.schedule(ticket)
        await self._keeper.flush(self._limit(), lambda _: True)
        self._keeper.stop()
        await self.runtime.join()
        await self.backend.close()

    @property
    def is_idle(self) -> bool:
        """No lease is held, requested, or to be released."""
        return not self._leases and not self._taking and self._keeper.has_nothing_pending

    def end_leases(self) -> list[Ticket]:
        """At the end of the process: end the leases whose thread or task has ended, and return the tickets to release.

        No request is made here, so that no code believes that it holds a lease while `release_ended` releases it. The
        leases of other threads are not touched: their code may still run.
        """
        if self._closed:
            return []
        ended: list[Ticket] = []
        for ref in list(self._leases.values()):  # one step
            lease = ref()
            if lease is not None and self.runtime.has_ended(lease._caller_ref()) and self._end(lease, _PROCESS_ENDS):
                ended.append(lease._ticket)
        return ended + self._keeper.pending_releases(self.runtime.has_ended)

    async def release_ended(self, tickets: Sequence[Ticket], deadline: float, backend: Backend | None = None) -> int:
        """Release tickets of `end_leases`, on another backend if this one's cannot be used; how many got no answer.

        Each is tried once. The ttl ends the others.
        """
        silent = 0
        for start in range(0, len(tickets), BATCH_MAX):
            batch = tickets[start : start + BATCH_MAX]
            try:
                outcomes = await (backend or self.backend).release(batch, deadline=deadline)
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
        for ref in list(self._leases.values()):
            lease = ref()
            if lease is not None and lease._phase is not RELEASED:
                lease._phase, lease._reason = LOST, reason
        self.mutex = self.runtime.mutex()
        self._keeper.abandon(self.mutex)
        self.backend.abandon()

    def dropped(self, lease: BaseLease) -> None:
        """Nobody refers to this lease any more, and it was not released; a weak reference to it is dead by now."""
        self._leases.pop(lease._ticket.nonce, None)
        if lease._phase is HELD:
            self._keeper.drop(lease._ticket, lease._deadline + lease._spec.lock_delay, lease._caller_ref)
            warnings.warn(
                f"the lease of lock {lease.name!r} (fence {lease.fence}) was dropped without release(): it is renewed "
                f"no more and keeps others out until its ttl of {lease.ttl:g} s is over",
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
