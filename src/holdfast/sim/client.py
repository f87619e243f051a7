"""A client in the simulator: the real engine, keeper and protocol, with a thin shell that writes down what it sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.checking import history as h
from holdfast.core.acquire_all import LockIdentity, Part, acquire_all, in_order
from holdfast.core.engine import AcquireResult, Engine
from holdfast.core.events import Event, Events
from holdfast.core.lease_groups import LeaseGroup, release_all, renew_all
from holdfast.core.leases import BaseLease, Phase
from holdfast.core.locks import BaseLock, LockOptions, make_spec
from holdfast.core.periods import Period, claim
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, LockLost
from holdfast.sim.runtime import SimRuntime
from holdfast.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.checking.history import WhyFailed
    from holdfast.core.ports import Runtime
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.servers.base import Server


class SimLease(BaseLease):
    """One successful acquisition."""

    __slots__ = ("call",)

    call: int


class SimLeaseGroup(LeaseGroup):
    """One successful acquisition of several locks at once."""

    __slots__ = ()

    @property
    def leases(self) -> tuple[SimLease, ...]:
        return tuple(lease for lease in self._leases if isinstance(lease, SimLease))


class SimLock(BaseLock[SimLease]):
    """A named lock of one client."""


class _Recorded(Events):
    """Events that are in the history from when they happen, however slow the subscribers are."""

    def __init__(self, record: Callable[[Event], object]) -> None:
        super().__init__()
        self._record = record

    def emit(self, event: Event, runtime: Runtime, *, here: bool) -> None:
        self._record(event)
        super().emit(event, runtime, here=here)


class SimClient:
    """What a process uses of holdfast. Its words are those of the two real shells."""

    group_type: type[SimLeaseGroup] = SimLeaseGroup

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
        events = _Recorded(self._tell)
        events.subscribe(lambda _: None)  # for which the runtime may need long
        self.engine = engine_type(server.open(link, self.runtime), self.runtime, events, SimLease)
        self._calls: dict[tuple[str, int], int] = {}  # lock, fence -> the call that got it
        # The same of locks that `lock_all` has so far: whether they are asked to let go before it has all of them.
        self._heard_early: dict[tuple[str, int], bool] = {}
        self._leases: dict[int, SimLease] = {}

    def lock(self, name: str, *, limit: int | None = 1, exclusive: bool = True, options: LockOptions) -> SimLock:
        told: LockOptions = {"on_lost": self._told, **options}
        return SimLock(*make_spec("lock", name, limit, exclusive=exclusive, ttl=30.0, options=told))

    async def acquire(self, lock: SimLock, timeout: float | None) -> SimLease | None:
        spec, client = lock._spec, self._process.name
        call = self.runtime.task.call = self._recorder.new_call()
        self._name_owner(call, lock)
        shape = (spec.limit, spec.exclusive)
        self._add(h.AcquireStarted(self._world.now, client, call, lock.name, timeout, *shape, owner=spec.owner))
        try:
            lease = (await self.engine.acquire(lock, timeout)).lease
        except BaseException as error:
            self._add(h.AcquireFailed(self._world.now, client, call, lock.name, _why(error)))
            raise
        now = self._world.now
        if lease is None:
            self._add(h.AcquireFailed(now, client, call, lock.name, "timed out"))
        elif lease._depth > 1:
            self._add(h.Reentered(now, client, call, lock.name, lease.fence))
        else:
            self._was_granted(call, lease)
        return lease

    async def release(self, lease: SimLease) -> None:
        if not lease.held or lease._depth > 1:
            await self.engine.release(lease)
            return
        here = (self._process.name, lease.call, lease.name)
        self._add(h.ReleaseStarted(self._world.now, *here))
        outcome: h.ReleaseOutcome = "pending"
        try:
            await self.engine.release(lease)
            outcome = "released"
        except LockLost:
            outcome = "lost"
            raise
        finally:
            self._add(h.ReleaseEnded(self._world.now, *here, outcome))
            self._forget(lease)

    # ── runs of a period, and requests to let go ─────────────────────────────────────────────────────────────────

    async def claim(self, job: str, period: Period) -> bool:
        """Whether the run of this job is ours, in the period that it is by this process's clock."""
        call = self.runtime.task.call = self._recorder.new_call()
        here = (self._process.name, call, job, period.number(self.runtime.wall()))
        self._add(h.ClaimStarted(self._world.now, *here))
        try:
            ours = await self._claim(job, period)
        except BaseException as error:
            self._add(h.ClaimEnded(self._world.now, *here, _why_not_claimed(error)))
            raise
        self._add(h.ClaimEnded(self._world.now, *here, "ours" if ours else "not ours"))
        return ours

    async def _claim(self, job: str, period: Period) -> bool:
        return await claim(self.engine, job, period)

    async def request_revoke(self, name: str) -> None:
        """Ask whoever holds it now."""
        call = self.runtime.task.call = self._recorder.new_call()
        holders = (await self.engine.operators.inspect(name)).holders
        fence = max((holder.fence or 0 for holder in holders), default=0)
        if fence:
            here = (self._process.name, call, name, fence)
            self._add(h.RevokeStarted(self._world.now, *here))
            if await self.engine.operators.request_revoke(name, fence):  # not if that lease has ended by now
                self._add(h.RevokeEnded(self._world.now, *here))

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    async def acquire_all(self, locks: Sequence[SimLock], timeout: float | None) -> SimLeaseGroup | None:
        ordered = self._in_order(locks)
        tickets = self._recorder.new_group([lock.name for lock in ordered])
        call = self.runtime.task.call = tickets[0]
        asked, client = self._world.now, self._process.name
        for ticket, lock in zip(tickets, ordered, strict=True):
            spec = lock._spec
            self._name_owner(ticket, lock)
            shape = (spec.limit, spec.exclusive)
            self._add(h.AcquireStarted(asked, client, ticket, lock.name, timeout, *shape, call, spec.owner))
        parts = [Part(self.engine, SimLock(lock._spec._replace(on_lost=None), None)) for lock in ordered]
        try:
            bundle = (await self._take_all(parts, timeout, self._together)).lease
        except BaseException as error:
            self._gave_up_all(call, ordered, _why(error))
            raise
        if bundle is None:
            self._gave_up_all(call, ordered, "timed out")
            return None
        for ticket, lease in zip(tickets, bundle.leases, strict=True):
            self._was_granted(ticket, lease, call)
        return bundle

    async def release_all(self, bundle: SimLeaseGroup) -> None:
        if not bundle.held:
            await release_all(bundle)
            return
        here = [(self._process.name, lease.call, lease.name) for lease in bundle.leases]
        for one in here:
            self._add(h.ReleaseStarted(self._world.now, *one))
        try:
            await release_all(bundle)
        finally:
            for one, lease in zip(here, bundle.leases, strict=True):
                self._add(h.ReleaseEnded(self._world.now, *one, _HOW_RELEASED.get(lease._phase, "pending")))
                self._forget(lease)

    async def renew_all(self, bundle: SimLeaseGroup) -> None:
        await renew_all(bundle)

    def check_all(self, bundle: SimLeaseGroup) -> bool:
        """What the bundle says of itself, and so of each of its leases."""
        try:
            bundle.check()
        except HoldfastError:
            held = False
        else:
            held = True
        for lease in bundle.leases:
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

    def _together(self, leases: Sequence[SimLease]) -> SimLeaseGroup:
        return self.group_type(leases, self._told_all, self.runtime)

    def _gave_up_all(self, call: int, locks: Sequence[SimLock], why: WhyFailed) -> None:
        now, client = self._world.now, self._process.name
        for lock in locks:
            ticket = self._recorder.member(call, lock.name) or call
            self._add(h.AcquireFailed(now, client, ticket, lock.name, why))
        # A lease of it that is left would be held by nobody, and renewed for ever.
        for ref in list(self.engine._leases.values()):
            left = ref()
            if left is not None and self._recorder.call_of(left._ticket.nonce) == call and left.held:
                ticket = self._recorder.member(call, left.name) or call
                self._add(h.Checked(now, client, ticket, left.name, held=True))

    def _told_all(self, bundle: SimLeaseGroup) -> None:
        for lease in bundle.leases:
            if lease._phase is Phase.LOST:
                self._told(lease)

    # ── what all of them share ───────────────────────────────────────────────────────────────────────────────────

    async def renew(self, lease: SimLease) -> None:
        await self.engine.renew(lease)

    def lead(self, lease: SimLease) -> None:
        """The lease is that of an election: its holder leads from now on."""
        self._add(h.Elected(self._world.now, self._process.name, lease.call, lease.name, lease.fence))

    def check(self, lease: SimLease) -> bool:
        """What the lease itself says."""
        try:
            lease.check()
        except HoldfastError:
            held = False
        else:
            held = True
        self._add(h.Checked(self._world.now, self._process.name, lease.call, lease.name, held))
        return held

    def _was_granted(self, call: int, lease: SimLease, bundle: int | None = None) -> None:
        spec, name = lease._spec, lease.name
        lease.call = call
        self._calls[name, lease.fence] = call
        self._leases[call] = lease
        until = self._process.true_time(lease._stop_at)
        renews = spec.renew and spec.max_hold is None
        shape = (spec.limit, spec.exclusive, renews, bundle, spec.lock_delay, spec.owner, spec.revocable)
        self._add(h.Granted(self._world.now, self._process.name, call, name, lease.fence, until, *shape))
        if self._heard_early.pop((name, lease.fence), False):
            self._add(h.RevokeReceived(self._world.now, self._process.name, call, name))

    def _forget(self, lease: SimLease) -> None:
        """What is told of this fence from now on is of another lease, of the same owner."""
        self._leases.pop(lease.call, None)
        if self._calls.get((lease.name, lease.fence)) == lease.call:
            del self._calls[lease.name, lease.fence]

    def _name_owner(self, ticket: int, lock: SimLock) -> None:
        if lock._spec.owner:
            self._recorder.owners[ticket] = lock._spec.owner

    def _tell(self, event: Event) -> None:
        if event.kind == "acquired":
            self._gathered(event)
        if event.fence is None or event.kind not in ("renewed", "lost", "revoke requested"):
            return
        call = self._calls.get((event.lock, event.fence))
        if call is None:
            if event.kind == "revoke requested" and (event.lock, event.fence) in self._heard_early:
                self._heard_early[event.lock, event.fence] = True
            return
        here = (self._process.name, call, event.lock)
        if event.kind == "renewed":
            self._add(h.Renewed(self._world.now, *here, self._process.true_time(self._leases[call]._stop_at)))
        elif event.kind == "lost":
            del self._calls[event.lock, event.fence]  # the same owner may have that fence once more, by another call
            self._add(h.Lost(self._world.now, *here, event.reason or ""))
        else:
            self._add(h.RevokeReceived(self._world.now, *here))

    def _gathered(self, event: Event) -> None:
        ticket = self._recorder.member(self.runtime.task.call, event.lock)
        if ticket is not None and event.fence is not None:
            self._heard_early[event.lock, event.fence] = False
            self._add(h.MemberGranted(self._world.now, self._process.name, ticket, event.lock, event.fence))

    def _told(self, lease: SimLease) -> None:
        self._add(h.LossReported(self._world.now, self._process.name, lease.call, lease.name))

    def _add(self, event: h.Event) -> None:
        if not self._process.is_dead:
            self._recorder.add(event)


_HOW_RELEASED: dict[Phase, h.ReleaseOutcome] = {Phase.RELEASED: "released", Phase.LOST: "lost"}


def _why(error: BaseException) -> WhyFailed:
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, BackendUnavailable):
        return "unavailable"
    return "unknown" if isinstance(error, BackendError) else "error"


def _why_not_claimed(error: BaseException) -> h.ClaimOutcome:
    why = _why(error)
    return "error" if why == "timed out" else why
