"""A client in the simulator: the real engine, keeper and protocol, with a thin shell that writes down what it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.checking import history as h
from holdfast.core.engine import Engine
from holdfast.core.events import Event, Events
from holdfast.core.handles import Handle, LockOptions, make_terms
from holdfast.core.holds import Hold
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, LockLost
from holdfast.sim.runtime import SimRuntime
from holdfast.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.checking.history import WhyGaveUp
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.servers.base import Server


class SimLease(Hold):
    """One successful acquisition."""

    __slots__ = ("call",)

    call: int


class SimLock(Handle[SimLease]):
    """A named lock of one client."""


class SimClient:
    """What a process uses of holdfast. Its words are those of the two real shells."""

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
        events = Events()
        events.subscribe(self._tell)
        self.engine = engine_type(server.open(link, self.runtime), self.runtime, events, SimLease)
        self._calls: dict[tuple[str, int], int] = {}  # lock, fence -> the call that got it
        self._leases: dict[int, SimLease] = {}

    def lock(self, name: str, *, limit: int | None = 1, exclusive: bool = True, options: LockOptions) -> SimLock:
        told: LockOptions = {"on_lost": self._told, **options}
        return SimLock(*make_terms("lock", name, limit, exclusive=exclusive, ttl=30.0, options=told))

    async def acquire(self, lock: SimLock, timeout: float | None) -> SimLease | None:
        terms, client = lock.terms, self._process.name
        call = self.runtime.task.call = self._recorder.new_call()
        self._add(h.Asked(self._world.now, client, call, lock.name, timeout, terms.limit, terms.exclusive))
        try:
            lease = (await self.engine.acquire(lock, timeout)).lease
        except BaseException as error:
            self._add(h.GaveUp(self._world.now, client, call, lock.name, _why(error)))
            raise
        now = self._world.now
        if lease is None:
            self._add(h.GaveUp(now, client, call, lock.name, "timed out"))
        elif lease._depth > 1:
            self._add(h.Reentered(now, client, call, lock.name, lease.fence))
        else:
            lease.call = call
            self._calls[lock.name, lease.fence] = call
            self._leases[call] = lease
            until = self._process.true_time(lease._stop_at)
            renews = terms.renew and terms.max_hold is None
            shape = (terms.limit, terms.exclusive, renews)
            self._add(h.Granted(now, client, call, lock.name, lease.fence, until, *shape))
        return lease

    async def release(self, lease: SimLease) -> None:
        if not lease.held or lease._depth > 1:
            await self.engine.release(lease)
            return
        here = (self._process.name, lease.call, lease.name)
        self._add(h.Released(self._world.now, *here))
        how: h.HowReleased = "owed"
        try:
            await self.engine.release(lease)
            how = "released"
        except LockLost:
            how = "lost"
            raise
        finally:
            self._add(h.ReleaseEnded(self._world.now, *here, how))
            self._leases.pop(lease.call, None)

    async def renew(self, lease: SimLease) -> None:
        await self.engine.renew(lease)

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

    def _tell(self, event: Event) -> None:
        if event.fence is None or event.kind not in ("renewed", "lost"):
            return
        call = self._calls.get((event.lock, event.fence))
        if call is None:
            return
        here = (self._process.name, call, event.lock)
        if event.kind == "renewed":
            self._add(h.Renewed(self._world.now, *here, self._process.true_time(self._leases[call]._stop_at)))
        else:
            self._add(h.Lost(self._world.now, *here, event.reason or ""))

    def _told(self, lease: SimLease) -> None:
        self._add(h.Told(self._world.now, self._process.name, lease.call, lease.name))

    def _add(self, event: h.Event) -> None:
        if not self._process.is_dead:
            self._recorder.add(event)


def _why(error: BaseException) -> WhyGaveUp:
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, BackendUnavailable):
        return "unavailable"
    return "unknown" if isinstance(error, BackendError) else "error"
