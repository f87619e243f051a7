"""Local hand-over: callers of one client that want the same lock pass its lease on without the server.

A *turn* of a client begins when the server grants one of its tickets, and ends when that ticket is released there. The
other callers of this client that want the lock at that time have no ticket on the server: they wait in a local queue. A
release in the turn passes the lease on to the first of them. The rules:

- One local ticket at a time is *active*: it requests the lock from the server for all of them, or holds it. If it gives
  up while it waits, the next one takes over its ticket on the server, and with it the place in the queue there.
- Only a regular release of a held lease passes it on. A loss, a cancelled call and a closed client end the turn.
- A pass needs an answer of the server that is younger than CONTACT_MAX and than a tenth of the ttl. The deadline of the
  new lease counts from that answer. Without one, or without a reserved fence, the release first requests an
  extension of the turn: the server renews the ticket, reserves fences for the waiters, and reports whether other
  clients wait.
- If others wait, the turn ends after as many passes as callers waited here when the lease arrived. If the lease came
  from another client, that client probably waits again, so the turn then ends without a request to extend it.
- If others wait when the turn ends, the request that releases the lock also queues a ticket for the callers that wait
  here, if the store can do so (QueuesAtRelease). The first of these callers takes that ticket over.
- If the ticket is gone, no caller gets the lease from another: each requests the lock from the server.

To the engine this is a backend with the verbs for single tickets. They are idempotent by nonce, so its guards against
interrupts and cancellation apply unchanged: either the caller has the lease, or a release of its ticket is pending.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from holdfast.core.clock import DRIFT
from holdfast.core.leases import HELD, RELEASING
from holdfast.core.one_by_one import result_or_error
from holdfast.core.ports import QueuesAtRelease
from holdfast.core.tickets import (
    POLL_INTERVAL,
    Claim,
    Granted,
    LeaseGone,
    Live,
    Waiting,
    granted_of,
    may_have_happened,
    process_text,
)
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.ports import ReservesFences

CONTACT_MAX = 0.1  # seconds since the last answer of the server in which a lease may be passed on
SPENT_MAX = 0.1  # the same as a share of the ttl
FENCES_MAX = 64  # reserved by one request
_FOREVER = float("inf")
LAST_POLLS = 1.0  # seconds: the least time for a request, even if its caller gives up sooner (engine.IO_TIMEOUT_MIN)


class LocalQueue:
    """The local tickets that wait for one lock, and the state of the turn."""

    __slots__ = (
        "deadline",
        "fence",
        "is_contended",
        "is_over",
        "is_range",
        "is_unpolled",
        "last",
        "outage",
        "passes_left",
        "returning",
        "ttl",
        "usable_until",
        "waiting",
    )

    def __init__(self, ttl: float) -> None:
        self.waiting: dict[str, Claim] = {}  # by nonce, in order
        self.ttl = ttl
        self.is_unpolled = False  # the active ticket has not polled the server since it became active
        self.begin(0)

    def begin(self, passes: int) -> None:
        """Begin a turn. In it, the lease may be passed on `passes` times while other clients wait."""
        self.passes_left = passes
        self.fence = self.last = 0  # the fence of the newest lease, and the last fence that is reserved
        self.deadline = self.usable_until = 0.0  # of the lease, and of passes, according to the last answer
        self.is_range = False  # the server shows several fences, one of which is in use
        self.is_over = False  # the server has answered that the ticket is gone
        self.is_contended = False  # the lease came from another client, which probably waits again
        self.returning = 0  # 1 if the caller whose release has ended the last turn probably waits again soon
        self.outage: BackendError | None = None  # the last request of the active ticket got no answer

    def reserve(self, granted: Granted, fences: int) -> None:
        """The server has extended the turn: `granted` has the first of the reserved fences, and the deadline."""
        self.fence, self.last, self.deadline = granted.fence - 1, granted.fence + fences - 1, granted.deadline
        self.is_range = fences > 1
        sent = granted.deadline - self.ttl * (1 - DRIFT)  # not later than the time at which the request was sent
        self.usable_until = sent + min(CONTACT_MAX, SPENT_MAX * self.ttl)


class LocalHandover:
    """The verbs of a backend for tickets of one client, some of which wait and hold locally.

    `active` has the active ticket of each lock. `queues` has the locks for which local tickets wait, or have waited in
    this turn. A ticket in `active` without a queue is a plain one.

    The straight path requests and releases a lock without the methods of this class, as long as the lock has no queue:

    - Acquire: it adds its ticket to `active` with `setdefault`, and continues only if no other ticket is there. When
      the ticket is granted, it sets `is_granted`, and calls `begin_turn` if the lock has a queue by then.
    - Release: it removes its ticket from `active`, and calls `promote` if the lock has a queue by then.
    """

    def __init__(self, engine: Engine[Any]) -> None:
        self.active: dict[str, Claim] = {}
        self.queues: dict[str, LocalQueue] = {}
        self._engine = engine  # its backend is replaced while the client has observers
        self._runtime = engine.runtime
        self._mutex = engine.runtime.mutex()
        process = process_text(f'{{"who": {engine.runtime.process_info()}, "meta": {{}}}}')
        self._waiting = Waiting(POLL_INTERVAL, process)  # the answer for a ticket that waits here

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        """Acquire the lock, or wait for it here if another ticket of this client is active."""
        name, backend = claim.name, self._engine.backend
        if not claim.passable:
            return await backend.try_acquire(claim, queue=queue, deadline=deadline)
        if self.active.setdefault(name, claim) is not claim or name in self.queues:
            with self._mutex:
                local_outcome = self._queue_locally(claim, queue)
            if isinstance(local_outcome, Granted):
                return local_outcome
            if local_outcome is not None:
                return await self._wait_here(claim, local_outcome, deadline)
        ticket = claim.server or claim
        if name in self.queues or ticket.waiting:
            local = self.queues.get(name)
            ticket.waiting = 0 if local is None else min(len(local.waiting) + local.returning, FENCES_MAX - 1)
        if ticket.reserved:
            ticket.reserved = 0  # left by an earlier grant that was interrupted: this grant may not use them
        try:
            outcome = await backend.try_acquire(ticket, queue=queue, deadline=deadline)
        except HoldfastError as error:
            self.note_error(claim, error)
            raise
        is_alone = self.active.get(name) is claim and name not in self.queues and not ticket.reserved
        if is_alone:  # as `note_answer` does, without a call
            if outcome.__class__ is Granted:
                claim.is_granted = True
                return outcome
            if queue:
                claim.is_answered = claim.was_blocked = True
                return outcome
        return self.note_answer(claim, outcome, queue)

    def note_error(self, claim: Claim, error: BaseException) -> None:
        """Note that the request of the active ticket has raised this error."""
        if isinstance(error, BackendError):
            self._note(claim, error)
        if not claim.is_answered and isinstance(error, BackendUnavailable | ConfigurationError):
            self._drop(claim)  # the engine does not release a ticket that no store knows

    def note_answer(self, claim: Claim, outcome: Granted | Waiting, queue: bool) -> Granted | Waiting:  # noqa: FBT001
        """Note the answer of the server to the active ticket. Returns the outcome for the caller."""
        if not claim.passable:
            return outcome
        if isinstance(outcome, Waiting):
            claim.is_answered = claim.was_blocked = True
            self._note(claim, None)
            if not queue:
                self._drop(claim)
        elif self.active.get(claim.name) is claim:
            self.begin_turn(claim, outcome)
        else:
            # It was released during the request, and another caller may have taken over its ticket.
            return Waiting(0.0)
        return outcome

    def begin_turn(self, claim: Claim, granted: Granted | None = None) -> None:
        """The server has granted the active ticket, perhaps with reserved fences."""
        claim.is_granted = True
        ticket = claim.server or claim
        with self._mutex:
            local = self.queues.get(claim.name)
            if local is None and ticket.reserved:  # the callers have given up, and the server shows the range
                local = self.queues[claim.name] = LocalQueue(ticket.ttl)
            if local is not None:
                local.begin(len(local.waiting))
                local.is_contended = claim.was_blocked or ticket.was_blocked
                if granted is not None and ticket.reserved:
                    local.passes_left = min(local.passes_left, ticket.reserved)
                    local.reserve(granted, ticket.reserved + 1)
                    local.fence = granted.fence
                    local.last = granted.fence + local.passes_left  # fewer may wait than when the ticket was queued
        ticket.reserved = 0

    def join(self, claim: Claim) -> Waiting | None:
        """Queue a new ticket of the straight path here. Returns None if it has to request the lock from the server.

        Raises:
            BackendUnavailable: the server does not answer the active ticket.
        """
        with self._mutex:
            blocked = self._queue_locally(claim, True)  # noqa: FBT003  (a waiting ticket)
        if not isinstance(blocked, Waiting):
            return None
        claim.is_answered = True
        return blocked

    def _queue_locally(self, claim: Claim, queue: bool) -> Granted | Waiting | None:  # noqa: FBT001
        """Queue a ticket here, unless it has to request the lock from the server; then this returns None.

        Returns the lease if it was passed on to this ticket.

        Raises:
            BackendUnavailable: the server does not answer the active ticket.
        """
        name = claim.name
        if name not in self.active:
            self._repair(name)
        active, local = self.active.setdefault(name, claim), self.queues.get(name)
        if active is claim:
            if local is not None:
                local.is_unpolled = False
            return claim.passed
        # A ticket that waits here already keeps its place, although a renewal may have changed the ttl of the lease.
        is_queued = local is not None and claim.nonce in local.waiting
        if not is_queued and (not queue or claim.ttl != active.ttl):
            claim.passable = False  # as a ticket of another client
            return None
        if local is None:
            local = self.queues[name] = LocalQueue((active.server or active).ttl)
            # The straight path may have ended that ticket, without the mutex, before it could find this queue.
            if self.active.get(name) is not active:
                del self.queues[name]
                return self._queue_locally(claim, queue)
        if local.outage is not None and not self._is_held(active):
            raise BackendUnavailable(backend=self._engine.backend.url, problem=local.outage.problem)
        local.waiting[claim.nonce] = claim
        local.returning = 0  # this is probably the caller that was expected to return
        return self._waiting

    async def _wait_here(self, claim: Claim, waiting: Waiting, deadline: float) -> Granted | Waiting:
        """The outcome for a ticket that waits here. If its caller gives up soon, the server has to confirm "busy"."""
        active = self.active.get(claim.name)
        is_held = active is not None and self._is_held(active)
        if not is_held and deadline <= self._runtime.now() + LAST_POLLS:
            granted = await self._probe(claim, deadline)
            if granted is not None:
                return granted
        claim.is_answered = True
        return waiting

    def _is_held(self, active: Claim) -> bool:
        """A caller of this client has the lease, so the lock is busy without an answer of the server."""
        ref = self._engine._leases.get(active.nonce)
        lease = None if ref is None else ref()
        return lease is not None and lease._phase in (HELD, RELEASING)

    def _is_renewing(self, claim: Claim) -> bool:
        """A renewal of this lease is in flight. It may be executed after a newer request, and set an earlier end."""
        return any(claim in renewed for renewed in list(self._engine._renewing.values()))  # an atomic copy

    async def _probe(self, claim: Claim, deadline: float) -> Granted | None:
        """Try to acquire the lock with another ticket, without a place in the queue."""
        probe = Claim(claim.name, self._runtime.nonce(), claim.ttl, 1, True, claim.agent, claim.info)  # noqa: FBT003
        try:
            outcome = await self._engine.backend.try_acquire(probe, queue=False, deadline=deadline)
            if isinstance(outcome, Waiting):
                return None
            self._drop(claim)
            claim.server = probe
            claim.passable = False  # from now on as a ticket of another client
        except BaseException as error:
            if may_have_happened(error):
                self._engine._keeper.schedule(probe)
            elif not claim.is_answered:
                self._drop(claim)
            raise
        return outcome

    def _note(self, claim: Claim, outage: BackendError | None) -> None:
        """Remember for the waiting tickets whether the server answers."""
        local = self._turn_of(claim)
        if local is not None:
            local.outage = outage

    def _drop(self, claim: Claim) -> None:
        """Remove a ticket that the engine will not release, because the store does not know it.

        The engine may use the claim again, so no other caller takes over its own ticket. If the claim uses the ticket
        of another caller, the store knows that one, so another caller takes it over, or the keeper releases it.
        """
        if not claim.passable:
            return
        with self._mutex:
            ticket = self._ended(claim, is_known=claim.server is not None)
        if ticket is not None and ticket is not claim:
            self._engine._keeper.schedule(ticket)

    def wait(self, claim: Claim, until: float) -> Coroutine[Any, Any, None]:
        """Return when `try_acquire` may succeed, at `until` at the latest."""
        is_alone = self.active.get(claim.name) is claim and claim.name not in self.queues and not claim.is_granted
        if is_alone or not claim.passable:
            return self._engine.backend.wait(claim.server or claim, until)
        return self._wait(claim, until)

    async def _wait(self, claim: Claim, until: float) -> None:
        if await self._wait_locally(claim, until):
            return
        with self._mutex:
            local = self.queues.get(claim.name)
            is_requesting = self.active.get(claim.name) is claim and not claim.is_granted
        if is_requesting and not (local is not None and local.is_unpolled):
            await self._engine.backend.wait(claim.server or claim, until)

    async def _wait_locally(self, claim: Claim, until: float) -> bool:
        """Wait until this ticket is the active one, at `until` at the latest. False: the ticket does not wait here."""
        event = self._runtime.event()
        with self._mutex:
            local = self.queues.get(claim.name)
            if local is None or claim.nonce not in local.waiting:
                return False
            claim.event = event
        try:
            await event.wait(until)
        finally:
            claim.event = None
        return True

    async def pause(self, claim: Claim, until: float) -> None:
        """Wait until then, because the last request has failed.

        A ticket that waits here keeps its place, so the lease may be passed on to it in the meantime.
        """
        if not await self._wait_locally(claim, until) and not claim.is_granted:
            await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    # ── release ──────────────────────────────────────────────────────────────────────────────────────────────────

    def release_held(
        self, claims: Sequence[Claim], *, deadline: float
    ) -> Coroutine[Any, Any, Sequence[bool | BackendError]]:
        """Release one lease that is held until now: the only kind of release that passes it on."""
        claim = claims[0]
        name = claim.name
        if claim.passable:
            if name in self.queues:
                return self._pass_on(claim, deadline)
            if self.active.get(name) is claim:
                del self.active[name]
            if name in self.queues:  # new since the check above: a caller has found this ticket in `active`
                self.promote(name)
        return self._engine.backend.release([claim.server or claim], deadline=deadline)

    def pass_on(self, claim: Claim) -> bool:
        """Pass on the lease of this ticket, which is held until now, if that needs no request."""
        with self._mutex:
            return self._pass(claim)

    async def _pass_on(self, claim: Claim, deadline: float) -> Sequence[bool | BackendError]:
        ticket, successor, local, fences, may_stay, others_wait = claim.server or claim, None, None, 0, False, False
        with self._mutex:
            if self._pass(claim):
                return [True]
            local = self._turn_of(claim)
            if local is not None:
                successor = next(iter(local.waiting.values()), None)
                may_stay = local.passes_left > 0
                fences = min(FENCES_MAX, len(local.waiting), local.passes_left if may_stay else FENCES_MAX)
                # A turn without passes left ends without a request to extend it if the lease came from another client,
                # because that client probably waits again.
                others_wait = local.is_contended and not may_stay
                if local.is_over or others_wait or not _has_ttl_of(local, ticket, claim) or self._is_renewing(claim):
                    fences = 0
        if fences and local is not None and successor is not None:
            outcome: Granted | Waiting | LeaseGone | None = None
            # If nothing was changed, the release may still succeed: a server without memory refuses extensions only.
            with suppress(BackendUnavailable):
                outcome = await self._extend(ticket, successor, fences, may_stay=may_stay, deadline=deadline)
            with self._mutex:
                if isinstance(outcome, Granted) and self._turn_of(claim) is local:
                    local.reserve(outcome, fences)
                    if self._pass(claim):
                        return [True]
            if isinstance(outcome, LeaseGone):
                self.end(claim)
                return [False]
            others_wait = isinstance(outcome, Waiting)
        backend = self._engine.backend
        if others_wait and successor is not None and not ticket.unanswered and isinstance(backend, QueuesAtRelease):
            return await self._release_and_queue(backend, claim, successor, deadline)
        return await self.release([claim], deadline=deadline)

    async def _release_and_queue(
        self, backend: QueuesAtRelease, claim: Claim, successor: Claim, deadline: float
    ) -> Sequence[bool | BackendError]:
        """End the turn, and queue a ticket for the callers that wait here in the same request.

        With a second request, which may take long on a busy server, this client would not be in the queue when the next
        turn ends, and other clients would have several turns in the meantime.
        """
        name, info = claim.name, without_caller(successor.info)
        queued = Claim(name, self._runtime.nonce(), successor.ttl, 1, True, successor.agent, info)  # noqa: FBT003
        queued.passable = True  # its release does nothing while a caller uses it
        try:
            was_held, is_known = await backend.release_and_queue(claim.server or claim, queued, deadline=deadline)
            with self._mutex:
                if self.active.get(name) is claim:
                    self._promote(name, queued if is_known else None)
                is_used = self._is_in_use(queued)
            if is_known and not is_used:  # the callers have given up, or the client was closed
                self._engine._keeper.schedule(queued)
        except BaseException as error:
            if may_have_happened(error):
                self._engine._keeper.schedule(queued)
            raise
        return [was_held]

    async def _extend(
        self, ticket: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        backend = cast("ReservesFences", self._engine.backend)
        return await backend.extend_turn(ticket, successor, fences, may_stay=may_stay, deadline=deadline)

    def _pass(self, claim: Claim) -> bool:
        """Pass the lease of this ticket on to the first waiting one, if the rules allow it. Returns whether it was."""
        name = claim.name
        local = self.queues.get(name)
        if local is None or self.active.get(name) is not claim or not local.waiting or local.is_over:
            return False
        ticket = claim.server or claim
        if local.fence >= local.last or not _has_ttl_of(local, ticket, claim):
            return False
        nonce = next(iter(local.waiting))
        successor = local.waiting[nonce]
        if successor.ttl != local.ttl or self._runtime.now() >= local.usable_until:
            return False
        passed = granted_of((local.fence + 1, local.deadline, None))
        # No call is between these lines, so no interrupt can leave them half done.
        local.fence += 1
        local.passes_left -= 1
        successor.passed = passed
        successor.server = ticket
        successor.is_granted = True
        self.active[name] = successor
        claim.is_passed_on = True
        del local.waiting[nonce]
        event = successor.event
        if event is not None:
            event.set()  # as `_wake` does, without a call
        return True

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        """Release leases and withdraw tickets. A lease of this client ends its turn."""
        tickets = [self.end(claim) for claim in claims]
        sent = [ticket for ticket in tickets if ticket is not None]
        outcomes = iter(await self._engine.backend.release(sent, deadline=deadline) if sent else ())
        return [False if ticket is None else next(outcomes) for ticket in tickets]

    def end(self, claim: Claim) -> Claim | None:
        """End the ticket here. Returns the ticket to release on the server, if there is one."""
        if not claim.passable:
            return claim.server or claim
        with self._mutex:
            return self._ended(claim)

    def _ended(self, claim: Claim, *, is_known: bool = True) -> Claim | None:
        name, ticket = claim.name, claim.server or claim
        local = self.queues.get(name)
        if self.active.get(name) is claim:
            if local is None:
                del self.active[name]
                return ticket
            # While it waits, the next caller takes over its ticket. A turn ends with the release of its ticket.
            is_taken_over = bool(local.waiting) and not claim.is_granted and is_known
            self._promote(name, ticket if is_taken_over else None)
            local.returning = int(claim.is_granted)
            return None if is_taken_over else ticket
        if local is None:
            return None if claim.is_passed_on else ticket
        if local.waiting.get(claim.nonce) is claim:
            del local.waiting[claim.nonce]
            _wake(claim)
            return None
        self._repair(name)
        active = self.active.get(name)
        if active is not None:
            _wake(active)  # an interrupted release may have passed the lease on without waking the new holder
        return None if claim.is_passed_on or self._is_in_use(ticket) else ticket

    def _is_in_use(self, ticket: Claim) -> bool:
        """Whether the active ticket of this lock is this one, or uses it on the server."""
        active = self.active.get(ticket.name)
        return active is not None and (active.server or active) is ticket

    def promote(self, name: str) -> None:
        """A plain ticket has ended while others waited for it: the first of these becomes the active one."""
        with self._mutex:
            self._repair(name)

    def _repair(self, name: str) -> None:
        if name in self.queues and name not in self.active:
            self._promote(name, None)

    def _promote(self, name: str, ticket: Claim | None) -> None:
        """Make the first waiting ticket active: it requests the lock with `ticket`, or with its own if that is None."""
        local = self.queues[name]
        nonce = next(iter(local.waiting), None)
        if nonce is None:
            self.active.pop(name, None)
            del self.queues[name]
            return
        claim = local.waiting[nonce]
        local.begin(0)
        if ticket is not None:
            ticket.info = without_caller(ticket.info)
        local.is_unpolled = True
        claim.server = ticket
        self.active[name] = claim
        del local.waiting[nonce]
        _wake(claim)

    def tickets_of(self, claims: Sequence[Claim]) -> list[Claim]:
        """At the end of the process: the tickets on the server that stand for these."""
        tickets = [self.end(claim) for claim in claims]
        return [ticket for ticket in tickets if ticket is not None]

    # ── renew ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        """Start the ttl of each lease again."""
        outcomes: dict[Claim, Live | LeaseGone | BackendError] = {}
        for claim in claims:
            fence = self._drop_fences(claim)
            if fence:
                backend = cast("ReservesFences", self._engine.backend)
                request = backend.renew_alone(_renewed_ticket(claim), claim, fence, deadline=deadline)
                outcome = outcomes[claim] = await result_or_error(request)
                with self._mutex:
                    local = self._turn_of(claim)
                    if local is not None and local.fence == fence and isinstance(outcome, Live):
                        local.is_range = False  # the server shows this fence alone
        others = [claim for claim in claims if claim not in outcomes]
        if others:
            tickets = [_renewed_ticket(claim) for claim in others]
            outcomes |= dict(zip(others, await self._engine.backend.renew(tickets, deadline=deadline), strict=True))
        for claim, outcome in outcomes.items():
            local = self._turn_of(claim)
            if local is not None and isinstance(outcome, LeaseGone):
                local.is_over = True
        return [outcomes[claim] for claim in claims]

    def _turn_of(self, claim: Claim) -> LocalQueue | None:
        return self.queues.get(claim.name) if self.active.get(claim.name) is claim else None

    def _drop_fences(self, claim: Claim) -> int:
        """Give up the fences that are reserved after that of this lease. Returns its fence; 0 if it is shown alone.

        A lease that is renewed is held for long. From then on the server shows its fence alone, not the range, so that
        an operator can break it.
        """
        with self._mutex:
            local = self._turn_of(claim)
            if local is None or not local.is_range:
                return 0
            local.last = local.fence
            return local.fence

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def abandon(self) -> None:
        """In a forked child: all tickets belong to the parent."""
        self._mutex = self._runtime.mutex()
        self.active, self.queues = {}, {}


def _has_ttl_of(local: LocalQueue, ticket: Claim, claim: Claim) -> bool:
    """Whether the ticket has the ttl of the queue, and no earlier renewal may still be executed."""
    return local.ttl == ticket.ttl == claim.ttl and ticket.unanswered_ttl == claim.unanswered_ttl == _FOREVER


def _renewed_ticket(claim: Claim) -> Claim:
    """The ticket on the server of this lease, with its ttl, which an earlier renewal may have changed."""
    ticket = claim.server
    if ticket is None:
        return claim
    ticket.ttl = claim.ttl
    return ticket


def _wake(claim: Claim) -> None:
    event = claim.event
    if event is not None:
        event.set()


def without_caller(info: str) -> str:
    """The `info` of a ticket that several callers use, without the name of the one that requested it."""
    client, meta_mark, meta = info.partition(', "meta": ')  # the user's meta may have such a key too
    start, mark, after_mark = client.partition(', "caller": "')
    return f"{start}{after_mark.partition(chr(34))[2]}{meta_mark}{meta}" if mark else info


def with_waiting(info: str, callers: int) -> str:
    """The `info` of a ticket while so many callers wait for its turn. The store reserves fences for them."""
    return f'{{"waiting": {callers}, {info[1:]}'


def with_fences(info: str, fences: int) -> str:
    """The `info` of a lease with so many reserved fences, of which the first is in its row. For SQL databases."""
    info = without_caller(info)
    return f'{info[:-1]}, "fences": {fences}}}' if fences > 1 else info
