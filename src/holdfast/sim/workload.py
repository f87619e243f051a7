"""What the clients of a simulated world do: take locks in all the ways there are, work under them, give them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.sim.world import Cancelled

if TYPE_CHECKING:
    from holdfast.core.handles import LockOptions
    from holdfast.sim.choices import Choices
    from holdfast.sim.client import SimClient, SimLease
    from holdfast.sim.process import Process
    from holdfast.sim.resource import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much of what. Times are seconds."""

    clients: int = 4
    rounds: int = 5  # locks that each client takes, one after the other
    ttl: float = 6.0
    hold_max: float = 4.0  # for each of one to three steps of work
    think_max: float = 2.0  # between two rounds
    timeout_max: float = 8.0
    kinds: Sequence[str] = ("lock", "rwlock", "semaphore")  # of which every run has one or two
    variety: bool = True  # re-entry, renew=False, max_hold, stop_margin, explicit renewal
    runs_for: float = 30.0  # and then the world heals


USUAL = Workload()


class Name(NamedTuple):
    """A lock of this run; everybody agrees on its kind."""

    name: str
    kind: str
    limit: int

    def shape(self, choices: Choices) -> tuple[int | None, bool]:
        """Limit and exclusive, as this round takes it."""
        if self.kind == "semaphore":
            return self.limit, False
        if self.kind == "rwlock" and choices.chance(0.6):
            return None, False
        return 1, True


def draw_names(workload: Workload, choices: Choices) -> list[Name]:
    count = 1 + choices.below(2)
    return [Name(f"lock-{number}", choices.pick(workload.kinds), 2 + choices.below(2)) for number in range(count)]


class Worker:
    """One client at work. After a crash a new one goes on with the rounds that are left."""

    def __init__(
        self,
        workload: Workload,
        names: Sequence[Name],
        *,
        process: Process,
        client: SimClient,
        resource: Resource,
        rounds: int,
    ) -> None:
        self._workload = workload
        self._names = names
        self._process = process
        self._choices = process.world.choices
        self._client = client
        self._resource = resource
        self.rounds_left = rounds
        self.is_busy = False  # inside a call that can be cancelled
        self.stays = False  # it has ended its rounds, or was told to

    async def run(self) -> None:
        while self.rounds_left > 0:
            self.rounds_left -= 1
            try:
                await self._pause(self._workload.think_max)
                await self._round()
            except (HoldfastError, Cancelled):
                continue  # it is in the history; a program would log it and go on
        self.stays = True

    async def _round(self) -> None:
        choices, workload = self._choices, self._workload
        name = choices.pick(self._names)
        limit, exclusive = name.shape(choices)
        lock = self._client.lock(name.name, limit=limit, exclusive=exclusive, options=self._options())
        timeout = (None, 0.0, choices.between(0.001, workload.timeout_max))[choices.below(3)]
        lease = await self._busy(self._client.acquire(lock, timeout))
        if lease is None:
            return
        inner: SimLease | None = None
        try:
            if lock.terms.reentrant and not lock.terms.is_permit:  # a second permit may never come
                inner = await self._client.acquire(lock, None)
            await self._work(lease, exclusive=exclusive)
        finally:
            if inner is not None:
                await self._client.release(inner)
            await self._busy(self._client.release(lease))

    async def _work(self, lease: SimLease, *, exclusive: bool) -> None:
        choices = self._choices
        for _ in range(1 + choices.below(3)):
            value = self._resource.read(self._process, lease) if exclusive else None
            await self._pause(self._workload.hold_max)
            if not self._client.check(lease):
                return
            if value is not None:
                self._resource.write(self._process, lease, value + 1, value)
            if not lease._terms.renew and choices.chance(0.7):
                await self._busy(self._client.renew(lease))

    def _options(self) -> LockOptions:
        choices, ttl = self._choices, self._workload.ttl
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
        return options

    async def _pause(self, at_most: float) -> None:
        await self._client.runtime.sleep(self._choices.between(0.0, at_most))

    async def _busy(self, call: object) -> SimLease | None:
        self.is_busy = True
        try:
            result: SimLease | None = await call  # type: ignore[misc]  # one of the client's coroutines
            return result
        finally:
            self.is_busy = False
