"""The calls of clients in a simulated world: acquire locks in every way, work under them, release them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.core.periods import Period
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.primitives import Primitive
from holdfast_lab.sim.once import KEY_USED_FOR, KINDS, BodyFailed, key_at, run_once
from holdfast_lab.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.core.locks import LockOptions
    from holdfast_lab.sim.choices import Choices
    from holdfast_lab.sim.client import SimClient, SimLease
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.resource import Resource

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The amount and kinds of work. Times are seconds."""

    clients: int = 4
    callers: int = 1  # tasks of each client
    rounds: int = 5  # locks that each of them acquires, one after the other
    ttl: float = 6.0
    several_ttls: bool = False  # some locks have half of the ttl
    hold_max: float = 4.0  # for each of one to three steps of work
    think_max: float = 2.0  # between two rounds
    timeout_max: float = 8.0
    kinds: Sequence[str] = ("lock", "rwlock", "semaphore")  # kinds of locks; each run has one or two
    variety: bool = True  # re-entry, renew=False, max_hold, stop_margin, explicit renewal
    primitives: Sequence[str] = ()  # other primitives, by name; each run has those that its store supports
    clock_error_max: float = 3.0  # error of the wall clock of a process that claims periods
    faults_for: float = 30.0  # seconds with faults; then the world is healed


USUAL = Workload()

_MORE = tuple(
    primitive.value
    for primitive in Primitive
    if primitive not in {Primitive.LOCK, Primitive.RWLOCK, Primitive.SEMAPHORE}
)
WORKLOADS: Mapping[str, Workload] = {
    "locks": USUAL,
    # Most locks are free, so most acquires use the straight path, where the backend has one.
    "free": Workload(clients=3, rounds=12, hold_max=0.5, think_max=6.0, kinds=("lock",), variety=False),
    **{primitive: Workload(kinds=("lock",), primitives=(primitive,)) for primitive in _MORE},
    Primitive.DETECT_DEADLOCKS.value: Workload(
        kinds=("lock", "rwlock"), primitives=(Primitive.DETECT_DEADLOCKS.value,)
    ),
    # Several callers of each client want one lock nearly all the time, for a short time.
    "callers": Workload(clients=3, callers=4, hold_max=0.2, think_max=0.3, kinds=("lock",)),
    # The same with locks that are free most of the time: other callers wait for a lease of the straight path.
    "free_callers": Workload(
        clients=2, callers=3, rounds=10, hold_max=0.5, think_max=6.0, kinds=("lock",), variety=False
    ),
    # The same for a very short time, so that a client uses the fences that a hand-over of another client has reserved.
    "brief_callers": Workload(clients=3, callers=4, rounds=40, hold_max=0.005, think_max=0.02, kinds=("lock",)),
    # Callers wait while the holder changes the ttl of the lease.
    "callers_renew": Workload(
        clients=2, callers=4, hold_max=1.5, think_max=0.5, kinds=("lock",), primitives=(Primitive.RENEW_TTL.value,)
    ),
    "everything": Workload(primitives=_MORE),
}


class Name(NamedTuple):
    """A lock of this run; all clients use it as the same kind."""

    name: str
    kind: str
    limit: int

    def shape(self, choices: Choices) -> tuple[int | None, bool]:
        """Limit and exclusive of this round."""
        if self.kind == "semaphore":
            return self.limit, False
        if self.kind == "rwlock" and choices.chance(0.6):
            return None, False
        return 1, True


_GROUP_MAX = 4  # locks in one call
JOB, PERIOD = "job", Period(2)
DELAYS = (1.0, 3.0)
MIN_HOLD_MAX = 4.0
WITHIN_MAX = 5.0
OWNERS = ("x", "y")
SEAT = Name("seat", "lock", 1)  # the lock of the election


def draw_names(workload: Workload, choices: Choices) -> list[Name]:
    least = 3 if "lock_all" in workload.primitives else 2 if "detect_deadlocks" in workload.primitives else 1
    count = least + choices.below(2)
    return [Name(f"lock-{number}", choices.pick(workload.kinds), 2 + choices.below(2)) for number in range(count)]


class Worker:
    """The work of one client. After a crash a new worker does the remaining rounds."""

    def __init__(
        self,
        workload: Workload,
        names: Sequence[Name],
        *,
        process: Process,
        client: SimClient,
        resource: Resource,
        texts: list[str],
        rounds: int,
    ) -> None:
        """`texts` is shared by all clients: a queue of messages, each with the text of a transferred lease."""
        self._workload = workload
        self._names = names
        self._process = process
        self._choices = process.world.choices
        self._client = client
        self._resource = resource
        self._texts = texts
        if "once_per" in workload.primitives:
            client.runtime.wall_step = -process.offset
        self.rounds_left = rounds
        self.is_busy = False  # in a call that can be cancelled
        self.is_done = False  # all rounds are done
        self.must_restart = False  # its client refuses to continue, so the program must restart

    async def run(self) -> None:
        while self.rounds_left > 0:
            self.rounds_left -= 1
            try:
                await self._pause(self._workload.think_max)
                await self._round()
            except ConfigurationError:
                self.must_restart = True
                return
            except (HoldfastError, Cancelled):
                continue  # it is in the history; a program would log it and continue
        self.is_done = True

    async def _round(self) -> None:
        """Use one of the primitives of this run."""
        if not self._workload.primitives:
            await self._use_one_lock()
            return
        match self._choices.pick(["lock", *self._workload.primitives]):
            case "lock_all":
                await self._use_several_locks()
            case "once_per":
                await self.claim(1 + self._choices.below(3))
            case "once":
                await self._call_once(2 + self._choices.below(3))
            case "revoke":
                await self._revoke(2 + self._choices.below(3))
            case "election":
                await self._campaign()
            case "detect_deadlocks":
                await self._nest_locks()
            case "transfer":
                await self._transfer_or_adopt()
            case _:
                await self._use_one_lock()

    async def _revoke(self, times: int) -> None:
        """Request revocations several times: a lock may be free, or its holder not revocable."""
        for _ in range(times):
            await self._busy(self._client.request_revoke(self._choices.pick(self._names).name))
            await self._pause(self._workload.think_max)

    async def claim_again(self, times: int) -> None:
        """Claim in a healed world; a client may still have to notice that a connection is dead."""
        for _ in range(times):
            try:
                await self.claim(1)
            except HoldfastError:
                continue  # it is in the history

    async def claim(self, times: int) -> None:
        """A scheduler that runs at random times, with a clock that is set now and then."""
        choices = self._choices
        for _ in range(times):
            if choices.chance(0.2):
                clock_error_max = self._workload.clock_error_max
                error = choices.between(0.0, 2 * clock_error_max) - clock_error_max
                self._client.runtime.wall_step = error - self._process.offset
            await self._busy(self._client.claim(JOB, PERIOD))
            await self._pause(self._workload.hold_max)

    async def _call_once(self, times: int) -> None:
        """Several calls for one key, as of a message that is delivered several times."""
        now = self._process.world.now
        key = key_at(KINDS[(int(now / KEY_USED_FOR) + self._choices.below(2)) % len(KINDS)], now)
        for _ in range(times):
            try:
                await self._busy(self._run_once(key, self._timeout()))
            except (HoldfastError, BodyFailed):
                continue  # it is in the history

    async def call_all_keys(self) -> None:
        """In a healed world every call ends, with or without a result."""
        for kind, age in itertools.product(KINDS, range(4)):
            with suppress(HoldfastError, BodyFailed):
                await self._run_once(key_at(kind, age * KEY_USED_FOR), None)

    async def _run_once(self, key: str, timeout: float | None) -> None:
        await run_once(self._client, key, self._body_of_once, ttl=self._workload.ttl, timeout=timeout)

    async def _body_of_once(self, lease: SimLease) -> None:
        await self._pause(self._workload.hold_max)
        is_lost = lease.lost
        match self._choices.below(4):
            case 0:
                lease.check()
            case 1 if is_lost or self._choices.chance(0.5):
                raise BodyFailed
            case _:
                pass

    async def _campaign(self) -> None:
        lock = self._client.lock(SEAT.name, options={"ttl": self._workload.ttl})
        lease = await self._busy(self._client.acquire(lock, self._timeout()))
        if lease is None:
            return
        try:
            self._client.lead(lease)
            await self._work(lease, exclusive=True)
        finally:
            await self._busy(self._client.release(lease))

    async def _use_several_locks(self) -> None:
        choices, client = self._choices, self._client
        names, wanted = list(self._names), 2 + choices.below(min(_GROUP_MAX, len(self._names)) - 1)
        options = self._options(exclusive=True)
        options.pop("reentrant", None)
        locks = []
        for _ in range(wanted):  # in a random order, different for each client
            name = names.pop(choices.below(len(names)))
            locks.append(client.lock(name.name, options=options))
        timeout = self._timeout()
        if timeout is None and "detect_deadlocks" in self._workload.primitives and "detect_deadlocks" not in options:
            timeout = self._workload.timeout_max  # a caller that holds locks while it waits would hide its cycles
        group = await self._busy(client.acquire_all(locks, timeout))
        if group is None:
            return
        try:
            for _ in range(1 + choices.below(3)):
                values = [(lease, self._resource.read(self._process, lease)) for lease in group.leases]
                await self._pause(self._workload.hold_max)
                if not client.check_all(group) or group.revoke_requested:
                    break
                for lease, value in values:
                    if value is not None:
                        self._resource.write(self._process, lease, value + 1, value)
                if self._changes_ttl():
                    await self._busy(client.renew_all(group, self._other_ttl(group.leases[0])))
                elif not group.leases[0]._spec.renew and choices.chance(0.7):
                    await self._busy(client.renew_all(group))
        finally:
            await self._busy(client.release_all(group))

    async def _use_one_lock(self) -> None:
        choices = self._choices
        name = choices.pick(self._names)
        limit, exclusive = name.shape(choices)
        options = self._options(exclusive=exclusive)
        lock = self._client.lock(name.name, limit=limit, exclusive=exclusive, options=options)
        lease = await self._busy(self._client.acquire(lock, self._timeout()))
        if lease is None:
            return
        inner: SimLease | None = None
        try:
            if lock._spec.reentrant and (exclusive or limit is None):  # a second permit may never be granted
                inner = await self._client.acquire(lock, None)
            await self._work(lease, exclusive=exclusive)
        finally:
            if inner is not None:
                await self._client.release(inner)
            await self._busy(self._client.release(lease))

    async def _transfer_or_adopt(self) -> None:
        """Adopt one of the last leases that were transferred, or acquire a lock and transfer its lease.

        Some texts are used by several clients, or twice by one; others are never used.
        """
        choices, texts = self._choices, self._texts
        lease: SimLease | None
        if texts and choices.chance(0.6):
            text = texts[-1 - choices.below(min(3, len(texts)))]
            if choices.chance(0.6):
                texts.remove(text)
            lease = await self._busy(self._client.adopt(text, self._options_of_adoption()))
        else:
            names = [name for name in self._names if name.kind != "semaphore"]
            if not names:
                return
            options = self._options(exclusive=True)
            options.pop("owner", None)
            options.pop("reentrant", None)
            lock = self._client.lock(choices.pick(names).name, options=options)
            lease = await self._busy(self._client.acquire(lock, self._timeout()))
        if lease is None:
            return
        is_over = False
        try:
            await self._work(lease, exclusive=True)
            if lease.held and choices.chance(0.7):
                is_over = True
                within = choices.between(0.5, WITHIN_MAX)
                texts.append(await self._busy(self._client.transfer(lease, within)))
        finally:
            if not is_over:
                await self._busy(self._client.release(lease))
        if is_over and choices.chance(0.3):
            await self._pause(self._workload.think_max)
            await self._transfer_or_adopt()

    def _options_of_adoption(self) -> LockOptions:
        options = self._options(exclusive=True)
        options.pop("owner", None)
        options.pop("detect_deadlocks", None)
        options.pop("min_hold", None)
        return options

    async def _nest_locks(self) -> None:
        """Acquire two locks in a random order, without a timeout for the second one in most rounds."""
        choices = self._choices
        names = [name for name in self._names if name.kind != "semaphore"]
        if len(names) > 1:
            outer = names.pop(choices.below(len(names)))
            await self._nest(outer, choices.pick(names), None if choices.chance(0.7) else self._timeout())

    async def _nest(self, outer: Name, inner: Name, timeout: float | None) -> None:
        """Acquire these two locks, and work under both."""
        lease = await self._acquire_detecting(outer, self._timeout())
        if lease is None:
            return
        try:
            await self._pause(self._workload.hold_max)
            inner_lease = await self._acquire_detecting(inner, timeout)
            if inner_lease is not None:
                try:
                    await self._work(inner_lease, exclusive=inner_lease._spec.exclusive)
                finally:
                    await self._busy(self._client.release(inner_lease))
        finally:
            await self._busy(self._client.release(lease))

    async def _acquire_detecting(self, name: Name, timeout: float | None) -> SimLease | None:
        limit, exclusive = name.shape(self._choices)
        options: LockOptions = {"ttl": self._workload.ttl, "detect_deadlocks": True}
        lock = self._client.lock(name.name, limit=limit, exclusive=exclusive, options=options)
        return await self._busy(self._client.acquire(lock, timeout))

    async def _work(self, lease: SimLease, *, exclusive: bool) -> None:
        choices = self._choices
        for _ in range(1 + choices.below(3)):
            value = self._resource.read(self._process, lease) if exclusive else None
            await self._pause(self._workload.hold_max)
            if not self._client.check(lease) or lease.revoke_requested:
                return
            if value is not None:
                self._resource.write(self._process, lease, value + 1, value)
            if self._changes_ttl():
                await self._busy(self._client.renew(lease, self._other_ttl(lease)))
            elif not lease._spec.renew and choices.chance(0.7):
                await self._busy(self._client.renew(lease))

    def _changes_ttl(self) -> bool:
        return Primitive.RENEW_TTL.value in self._workload.primitives and self._choices.chance(0.6)

    def _other_ttl(self, lease: SimLease) -> float:
        """A ttl that is at most the ttl of the workload, because the limits of the checkers depend on that one."""
        return max(self._choices.pick((1.0, 0.6, 0.3)) * self._workload.ttl, 2 * lease._spec.stop_margin)

    def _timeout(self) -> float | None:
        choices = self._choices
        return (None, 0.0, choices.between(0.001, self._workload.timeout_max))[choices.below(3)]

    def _options(self, *, exclusive: bool) -> LockOptions:
        choices, ttl = self._choices, self._workload.ttl
        if self._workload.several_ttls and choices.chance(0.3):
            ttl /= 2
        options: LockOptions = {"ttl": ttl}
        if self._workload.variety:
            match choices.below(8):
                case 5:
                    options["reentrant"] = True
                case 6:
                    options["renew"] = False
                case 7:
                    options["stop_margin"] = choices.between(0.0, ttl / 3)
                    options["max_hold"] = choices.between(ttl / 2, ttl * 2)
                case _:
                    pass
        primitives = self._workload.primitives
        if "lock_delay" in primitives and choices.chance(0.6):
            options["lock_delay"] = choices.pick(DELAYS)
        if "owner" in primitives and exclusive and "reentrant" not in options and choices.chance(0.8):
            options["owner"] = choices.pick(OWNERS)
        if "revoke" in primitives and options.get("renew", True) and choices.chance(0.8):
            options["revocable"] = True
        if "min_hold" in primitives and "owner" not in options and choices.chance(0.7):
            options["min_hold"] = choices.between(0.0, min(ttl / 2, MIN_HOLD_MAX))  # shorter than max_hold
        elif "detect_deadlocks" in primitives:
            options["detect_deadlocks"] = True  # a waiter without it hides the cycles that it is part of
        return options

    async def _pause(self, at_most: float) -> None:
        await self._client.runtime.sleep(self._choices.between(0.0, at_most))

    async def _busy(self, call: Awaitable[T]) -> T:
        self.is_busy = True
        try:
            return await call
        finally:
            self.is_busy = False
