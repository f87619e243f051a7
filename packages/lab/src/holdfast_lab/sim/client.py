"""A client in the simulator: the real engine, keeper and protocol, with a thin shell that records events."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.core.acquire_all import LockIdentity, Part, acquire_all, in_order
from holdfast.core.engine import Engine
from holdfast.core.events import Attempt, Event, Events
from holdfast.core.lease_groups import LeaseGroup, release_all, renew_all
from holdfast.core.leases import AcquireResult, BaseLease, LockSpec, Phase
from holdfast.core.local_handover import LocalHandover
from holdfast.core.locks import BaseLock, LockOptions, make_spec
from holdfast.core.once import OnceCall
from holdfast.core.periods import Period, claim
from holdfast.core.tickets import Granted
from holdfast.core.transfers import Transfer, decode_transfer, encode_transfer
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, LockLost, NotHeld, WouldDeadlock
from holdfast_lab.checking import history as h
from holdfast_lab.sim.runtime import SimRuntime
from holdfast_lab.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim, LeaseGone, Waiting
    from holdfast_lab.checking.history import WhyFailed
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.servers.base import Server


class SimLease(BaseLease):
    """One successful acquisition."""

    __slots__ = ("call", "on_ttl_changed")

    call: int
    on_ttl_changed: Callable[[SimLease], None]

    def _change_ttl(self, spec: LockSpec, now: float) -> None:
        was_held = self.held
        super()._change_ttl(spec, now)
        if was_held:
            self.on_ttl_changed(self)


class SimLeaseGroup(LeaseGroup):
    """One successful acquisition of several locks at once."""

    __slots__ = ()

    @property
    def leases(self) -> tuple[SimLease, ...]:
        return tuple(lease for lease in self._leases if isinstance(lease, SimLease))


class SimLock(BaseLock[SimLease]):
    """A named lock of one client."""


class _RecordingEvents(Events):
    """Records each event in the history when it happens, before slow subscribers receive it."""

    def __init__(self, record: Callable[[Event], object]) -> None:
        super().__init__()
        self._on_event = record

    def emit(self, attempt: Attempt, event: Event, runtime: Runtime, *, here: bool) -> None:
        self._on_event(event)
        super().emit(attempt, event, runtime, here=here)


class _RecordedHandover(LocalHandover):
    """Records the call that each ticket on the server is for, and the turns of the client."""

    def __init__(self, engine: Engine[Any]) -> None:
        super().__init__(engine)
        self._recorded_turns: set[str] = set()  # nonces of their tickets

    def begin_turn(self, claim: Claim, granted: Granted | None = None) -> None:
        ticket, local = claim.server or claim, self.queues.get(claim.name)
        if ticket.reserved:
            self._recorder.extended.add(ticket.nonce)
        self._record_turn(claim, 0 if local is None else len(local.waiting))
        super().begin_turn(claim, granted)

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        if isinstance(outcome, Granted) and claim.passed is None:
            self.note_grant(claim)
        return outcome

    def note_grant(self, claim: Claim) -> None:
        """The server has granted this ticket. `begin_turn` was called only if the lock has a queue."""
        if claim.passable and claim.nonce not in self._recorded_turns:
            self._record_turn(claim, 0)

    def _record_turn(self, claim: Claim, waiting: int) -> None:
        self._recorded_turns.add(claim.nonce)
        self._recorder.turn_began(claim.nonce, claim.name, waiting)

    async def _extend(
        self, ticket: Claim, successor: Claim, fences: int, *, may_stay: bool, deadline: float
    ) -> Granted | Waiting | LeaseGone:
        self._recorder.extended.add(ticket.nonce)
        self._recorder.reserving[ticket.nonce] = fences
        outcome = await super()._extend(ticket, successor, fences, may_stay=may_stay, deadline=deadline)
        self._recorder.reserving.pop(ticket.nonce, None)  # refused
        return outcome

    def _pass(self, claim: Claim) -> bool:
        is_passed = super()._pass(claim)
        if is_passed:
            successor = self.active[claim.name]
            if successor.server is not None and successor.passed is not None:
                fence = successor.passed.fence
                self._recorder.passed(successor.server.nonce, successor.nonce, claim.name, fence)
        return is_passed

    def _promote(self, name: str, ticket: Claim | None) -> None:
        super()._promote(name, ticket)
        if ticket is not None and name in self.active:
            self._recorder.reassign(ticket.nonce, self.active[name].nonce)

    @property
    def _recorder(self) -> Recorder:
        return cast("SimRuntime", self._runtime).recorder


@functools.cache
def _recorded(engine_type: Any) -> Any:
    """This type of engine with a recorded local hand-over."""
    handover = type("RecordedHandover", (_RecordedHandover, engine_type.local_handover_type), {})
    straight = engine_type.acquire_straight

    async def acquire_straight(engine: Any, *arguments: Any) -> AcquireResult[Any]:
        result: AcquireResult[Any] = await straight(engine, *arguments)
        claim = None if result.lease is None else result.lease._claim
        if engine.local is not None and claim is not None and claim.path is not None and claim.passed is None:
            engine.local.note_grant(claim)
        return result

    members = {"local_handover_type": handover, "acquire_straight": staticmethod(acquire_straight)}
    return type(engine_type.__name__, (engine_type,), members)


class SimClient:
    """The client of a simulated process, with the methods of the two real shells."""

    group_type: type[SimLeaseGroup] = SimLeaseGroup
    once_call_type: type[OnceCall] = OnceCall

    def __init__(
        self,
        process: Process,
        server: Server,
        link: Link,
        recorder: Recorder,
        engine_type: type[Engine[SimLease]] = Engine,
    ) -> None:
        self._process = process
        self._world = process.world
        self._recorder = recorder
        self.runtime = SimRuntime(process, recorder)
        self.runtime.link = link
        events = _RecordingEvents(self._record)
        events.subscribe(self._record_delivered)  # the runtime simulates that it is slow
        recorded = _recorded(cast("Any", engine_type))
        self.engine: Engine[SimLease] = recorded(server.open(link, self.runtime), self.runtime, events, SimLease)
        # By attempt, because several callers of one owner have the same fence.
        self._calls: dict[int, int] = {}
        # By attempt, for each lock that a running `lock_all` has acquired: whether a revocation request was received.
        self._early_revocations: dict[int, bool] = {}
        self._leases: dict[int, SimLease] = {}
        self._locks: dict[tuple[str, int | None, bool, str], SimLock] = {}

    def lock(self, name: str, *, limit: int | None = 1, exclusive: bool = True, options: LockOptions) -> SimLock:
        """A lock of this client. The same arguments return the same object, as in a program that keeps its locks."""
        key = (name, limit, exclusive, repr(sorted(options.items())))
        if key not in self._locks:
            options_: LockOptions = {"on_lost": self._record_report, **options}
            spec, timeout = make_spec("lock", name, limit, exclusive=exclusive, ttl=30.0, options=options_)
            self._locks[key] = SimLock(spec, timeout)
        return self._locks[key]

    async def acquire(self, lock: SimLock, timeout: float | None) -> SimLease | None:
        spec, client = lock._spec, self._process.name
        call = self.runtime.task.call = self._recorder.new_call()
        self._set_owner(call, lock)
        shape = (spec.limit, spec.exclusive, None, spec.owner, None, self._caller)
        self._add(h.AcquireStarted(self._world.now, client, call, lock.name, timeout, *shape))
        try:
            lease = (await self.engine.acquire(lock, timeout)).lease
        except BaseException as error:
            self._add(h.AcquireFailed(self._world.now, client, call, lock.name, _failure_of(error)))
            raise
        now = self._world.now
        if lease is None:
            self._add(h.AcquireFailed(now, client, call, lock.name, "timed out"))
        elif lease._depth > 1:
            self._add(h.Reentered(now, client, call, lock.name, lease.fence))
        else:
            self._record_granted(call, lease)
        return lease

    async def release(self, lease: SimLease) -> None:
        if not lease.held or lease._depth > 1:
            await self.engine.release(lease)
            return
        fields = (self._process.name, lease.call, lease.name)
        self._add(h.ReleaseStarted(self._world.now, *fields))
        outcome: h.ReleaseOutcome = "pending"
        try:
            await self.engine.release(lease)
            outcome = "released"
        except LockLost:
            outcome = "lost"
            raise
        finally:
            self._add(h.ReleaseEnded(self._world.now, *fields, outcome))
            self._drop(lease)

    # ── transfers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def transfer(self, lease: SimLease, within: float) -> str:
        """Transfer a lease; the text with which a client can adopt it."""
        lease.check()
        fields = (self._process.name, lease.call, lease.name)
        self._add(h.ReleaseStarted(self._world.now, *fields, within))
        outcome: h.ReleaseOutcome = "pending"
        try:
            nonce, left = await self.engine.transfer(lease, within)
            outcome = "transferred"
        except LockLost:
            outcome = "lost"
            raise
        finally:
            self._add(h.ReleaseEnded(self._world.now, *fields, outcome))
            self._drop(lease)
        return encode_transfer(Transfer("sim", lease.name, nonce, lease.ttl, left))

    async def adopt(self, text: str, options: LockOptions) -> SimLease:
        """Adopt a lease that was transferred."""
        transfer = decode_transfer(text)
        lock, client = self.lock(transfer.name, options=options), self._process.name
        call = self.runtime.task.call = self._recorder.new_call()
        adopts = self._recorder.call_of(transfer.nonce)
        self._add(h.AcquireStarted(self._world.now, client, call, lock.name, adopts=adopts, caller=self._caller))
        try:
            lease = await self.engine.adopt(lock, transfer.nonce, transfer.min_hold_left)
        except BaseException as error:
            self._add(h.AcquireFailed(self._world.now, client, call, lock.name, _failure_of(error)))
            raise
        self._record_granted(call, lease, adopts=adopts)
        return lease

    # ── periods and revocations ────────────────────────────────────────────────────────────────────────────────

    async def claim(self, job: str, period: Period) -> bool:
        """Claim the run of this job in the current period of this process's clock; whether this client got it."""
        call = self.runtime.task.call = self._recorder.new_call()
        fields = (self._process.name, call, job, period.number(self.runtime.wall()))
        self._add(h.ClaimStarted(self._world.now, *fields))
        try:
            ours = await self._claim(job, period)
        except BaseException as error:
            self._add(h.ClaimEnded(self._world.now, *fields, _claim_failure_of(error)))
            raise
        self._add(h.ClaimEnded(self._world.now, *fields, "ours" if ours else "not ours"))
        return ours

    async def _claim(self, job: str, period: Period) -> bool:
        return await claim(self.engine, job, period)

    def new_call(self) -> int:
        """The number of a new call, which the current task makes."""
        call = self.runtime.task.call = self._recorder.new_call()
        return call

    def add(self, kind: Callable[..., h.Event], *fields: object) -> None:
        """Record an event of this client with the present time."""
        self._add(kind(self._world.now, self._process.name, *fields))

    async def acquire_for_once(self, call: OnceCall, timeout: float | None) -> SimLease | None:
        return await self.acquire(SimLock(call.spec._replace(on_lost=self._record_report), None), timeout)

    async def request_revoke(self, name: str) -> None:
        """Request the revocation of the current holder's lease."""
        call = self.runtime.task.call = self._recorder.new_call()
        holders = (await self.engine.operators.inspect(name)).holders
        fence = max((holder.fence or 0 for holder in holders), default=0)
        if fence:
            fields = (self._process.name, call, name, fence)
            self._add(h.RevokeStarted(self._world.now, *fields))
            if await self.engine.operators.request_revoke(name, fence):  # False if the lease has ended
                self._add(h.RevokeEnded(self._world.now, *fields))

    # ── lock_all ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def acquire_all(self, locks: Sequence[SimLock], timeout: float | None) -> SimLeaseGroup | None:
        ordered = self._in_order(locks)
        tickets = self._recorder.new_group([lock.name for lock in ordered])
        call = self.runtime.task.call = tickets[0]
        started, client = self._world.now, self._process.name
        for ticket, lock in zip(tickets, ordered, strict=True):
            spec = lock._spec
            self._set_owner(ticket, lock)
            shape = (spec.limit, spec.exclusive, call, spec.owner, None, self._caller)
            self._add(h.AcquireStarted(started, client, ticket, lock.name, timeout, *shape))
        parts = [Part(self.engine, SimLock(lock._spec._replace(on_lost=None), None)) for lock in ordered]
        try:
            group = (await self._take_all(parts, timeout, self._make_group)).lease
        except BaseException as error:
            self._record_failed(call, ordered, _failure_of(error))
            raise
        if group is None:
            self._record_failed(call, ordered, "timed out")
            return None
        for ticket, lease in zip(tickets, group.leases, strict=True):
            self._record_granted(ticket, lease, call)
        return group

    async def release_all(self, group: SimLeaseGroup) -> None:
        if not group.held:
            await release_all(group)
            return
        fields = [(self._process.name, lease.call, lease.name) for lease in group.leases]
        for lease_fields in fields:
            self._add(h.ReleaseStarted(self._world.now, *lease_fields))
        try:
            await release_all(group)
        finally:
            for lease_fields, lease in zip(fields, group.leases, strict=True):
                self._add(
                    h.ReleaseEnded(self._world.now, *lease_fields, _RELEASE_OUTCOMES.get(lease._phase, "pending"))
                )
                self._drop(lease)

    async def renew_all(self, group: SimLeaseGroup, ttl: float | None = None) -> None:
        await renew_all(group, ttl)

    def check_all(self, group: SimLeaseGroup) -> bool:
        """Check the group, and record the result for each of its leases."""
        try:
            group.check()
        except HoldfastError:
            held = False
        else:
            held = True
        for lease in group.leases:
            self._add(h.Checked(self._world.now, self._process.name, lease.call, lease.name, held))
        return held

    def _in_order(self, locks: Sequence[SimLock]) -> list[SimLock]:
        return in_order(locks, lambda lock: LockIdentity(lock.name, "sim", self))

    async def _take_all(
        self,
        parts: Sequence[Part[SimLease]],
        timeout: float | None,
        make: Callable[[Sequence[SimLease]], SimLeaseGroup],
    ) -> AcquireResult[SimLeaseGroup]:
        return await acquire_all(parts, timeout, make)

    def _make_group(self, leases: Sequence[SimLease]) -> SimLeaseGroup:
        return self.group_type(leases, self._record_group_report, self.runtime)

    def _record_failed(self, call: int, locks: Sequence[SimLock], failure: WhyFailed) -> None:
        now, client = self._world.now, self._process.name
        for lock in locks:
            ticket = self._recorder.member(call, lock.name) or call
            self._add(h.AcquireFailed(now, client, ticket, lock.name, failure))
        # A lease that the failed call has left held would be renewed forever, so record it for the checker of groups.
        for ref in list(self.engine._leases.values()):
            lease = ref()
            if lease is not None and self._recorder.call_of(lease._claim.nonce) == call and lease.held:
                ticket = self._recorder.member(call, lease.name) or call
                self._add(h.Checked(now, client, ticket, lease.name, held=True))

    def _record_group_report(self, group: SimLeaseGroup) -> None:
        for lease in group.leases:
            if lease._phase is Phase.LOST:
                self._record_report(lease)

    # ── shared helpers ───────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, lease: SimLease, ttl: float | None = None) -> None:
        await self.engine.renew(lease, ttl=ttl)

    def lead(self, lease: SimLease) -> None:
        """Record that the holder of this election lease leads from now on."""
        self._add(h.Elected(self._world.now, self._process.name, lease.call, lease.name, lease.fence))

    def check(self, lease: SimLease) -> bool:
        """Check the lease, and record the result."""
        try:
            lease.check()
        except HoldfastError:
            held = False
        else:
            held = True
        self._add(h.Checked(self._world.now, self._process.name, lease.call, lease.name, held))
        return held

    def _record_granted(self, call: int, lease: SimLease, group: int | None = None, adopts: int | None = None) -> None:
        spec, name = lease._spec, lease.name
        lease.call, lease.on_ttl_changed = call, self._record_ttl_changed
        attempt = self._attempt(lease)
        self._calls[attempt] = call
        self._leases[call] = lease
        until = self._process.true_time(lease._stop_at)
        renews = spec.renew and spec.max_hold is None
        shape = (spec.limit, spec.exclusive, renews, group, spec.lock_delay, spec.owner, spec.revocable, spec.min_hold)
        self._add(h.Granted(self._world.now, self._process.name, call, name, lease.fence, until, *shape, adopts))
        if self._early_revocations.pop(attempt, False):
            self._add(h.RevokeReceived(self._world.now, self._process.name, call, name))

    def _record_ttl_changed(self, lease: SimLease) -> None:
        until = self._process.true_time(lease._stop_at)
        self._add(h.Renewed(self._world.now, self._process.name, lease.call, lease.name, until, is_answered=False))

    def _drop(self, lease: SimLease) -> None:
        """Forget a released lease."""
        self._leases.pop(lease.call, None)
        self._calls.pop(self._attempt(lease), None)

    @property
    def _caller(self) -> int:
        return self.runtime.task.caller.number

    def _attempt(self, lease: SimLease) -> int:
        return self.engine._attempt_of(lease).fields.attempt

    def _set_owner(self, ticket: int, lock: SimLock) -> None:
        if lock._spec.owner:
            self._recorder.owners[ticket] = lock._spec.owner

    def _record(self, event: Event) -> None:
        if event.kind == "acquired":
            self._record_member(event)
        if event.kind not in ("renewed", "lost", "revoke requested"):
            return
        call = self._calls.get(event.attempt)
        if call is None:
            if event.kind == "revoke requested" and event.attempt in self._early_revocations:
                self._early_revocations[event.attempt] = True
            return
        fields = (self._process.name, call, event.lock)
        if event.kind == "renewed":
            self._add(h.Renewed(self._world.now, *fields, self._process.true_time(self._leases[call]._stop_at)))
        elif event.kind == "lost":
            del self._calls[event.attempt]
            self._add(h.Lost(self._world.now, *fields, event.reason or ""))
        else:
            self._add(h.RevokeReceived(self._world.now, *fields))

    def _record_member(self, event: Event) -> None:
        ticket = self._recorder.member(self.runtime.task.call, event.lock)
        if ticket is not None and event.fence is not None:
            self._early_revocations[event.attempt] = False
            self._add(h.MemberGranted(self._world.now, self._process.name, ticket, event.lock, event.fence))

    def _record_delivered(self, event: Event) -> None:
        if event.kind in ("acquiring", "acquired", "not acquired", "lost", "released"):
            fields = (self._process.name, self._recorder.attempt(event.attempt), event.lock, event.kind, event.outcome)
            self._add(h.Delivered(self._world.now, *fields))

    def _record_report(self, lease: SimLease) -> None:
        self._add(h.LossReported(self._world.now, self._process.name, lease.call, lease.name))

    def _add(self, event: h.Event) -> None:
        if not self._process.is_dead:
            self._recorder.add(event)


_RELEASE_OUTCOMES: dict[Phase, h.ReleaseOutcome] = {Phase.RELEASED: "released", Phase.LOST: "lost"}


def _failure_of(error: BaseException) -> WhyFailed:
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, BackendUnavailable):
        return "unavailable"
    if isinstance(error, WouldDeadlock) and error.cycle:
        return "deadlock"
    if isinstance(error, NotHeld):
        return "gone"
    return "unknown" if isinstance(error, BackendError) else "error"


def _claim_failure_of(error: BaseException) -> h.ClaimOutcome:
    failure = _failure_of(error)
    return "error" if failure == "timed out" or failure == "deadlock" or failure == "gone" else failure  # noqa: PLR1714 - narrows the type
