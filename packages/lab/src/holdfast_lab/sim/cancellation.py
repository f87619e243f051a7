"""Cancel each call at its k-th suspension, for every k, and check that nothing is left on the server.

The calls are for one lock, and for two at once: the first is free, the other clients want the second.

Client `a` makes a call that is cancelled when it suspends, or just after the server has done its request; either
without faults, or with one lost reply to a request of `a`. Then the waiting client `c` must get the lock soon, `a` must
get it again, and every promise must be kept. The ttl is far too long to help.

The keeper is cancelled too, as asyncio.run does at its end, while it has a pending release, which it must try to send.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.errors import BackendUnavailable, HoldfastError
from holdfast_lab.checking import Promises, Verdict, judge
from holdfast_lab.checking import history as h
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease, SimLeaseGroup, SimLock
from holdfast_lab.sim.faults import CALM
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.world import Cancelled, Task

if TYPE_CHECKING:
    from holdfast_lab.sim.servers.base import Server

T = TypeVar("T")

TTL = 300.0
FIRST_LOCK = "a lock"  # a group acquires it before the lock that all want
STARTS_AT, FREE_AT = 1.0, 2.0  # when `a` makes its call; when `b` releases the lock, if it holds it
HOLDS = 0.05
SOON = 2.0  # seconds; at the next poll at the latest
SOON_AFTER_LOSS = 8.0  # after a lost reply, the request has to time out first
ENDS_AT = 40.0
REPLIES = 4  # each of this many first replies is lost once
SERVED = 1.5 * CALM.delay_min  # the request is done, and its reply is in flight


class Case(NamedTuple):
    """One call, cancelled at one point."""

    call: str
    suspension: int  # 1 is the first
    after: float  # seconds into that suspension
    lost: int | None  # the number of the lost reply to `a`

    def __str__(self) -> str:
        when = "after the server has done it" if self.after else "at once"
        lost = "" if self.lost is None else f", reply {self.lost} lost"
        return f"{self.call}: cancelled at suspension {self.suspension}, {when}{lost}"


class Cancellation(NamedTuple):
    """The result of one cancellation."""

    case: Case
    history: list[h.Event]
    verdict: Verdict
    problem: str | None  # None if there is none


def cancellations(plan: Plan, *, step: int = 1, every: int = 1) -> Iterator[Cancellation]:
    """All cases. Each call is cancelled `step` suspensions later, until it ends before that.

    If there are steps, it is cancelled at other suspensions with every second lost reply.

    With `every`, only every nth of the ten combinations of a call with a time and a lost reply is tried. The numbers 3
    and 7 give other combinations for each call.
    """
    combinations = itertools.product(_CALLS, (0.0, SERVED), (None, *range(1, REPLIES + 1)))
    for call, after, lost in itertools.islice(combinations, None, None, every):
        for suspension in itertools.count(1 + (lost or 0) % min(step, 2), step):
            with quiet():
                world = _World(plan, Case(call, suspension, after, lost))
                try:
                    world.run()
                finally:
                    world.end()
            if not world.was_reached:
                break
            yield world.result()


class _World(SmallWorld):
    """`b` may hold the lock first, `a` is cancelled, `c` waits."""

    def __init__(self, plan: Plan, case: Case) -> None:
        super().__init__(plan, Choices(decisions=()))
        self._case = case
        self._got: dict[str, float] = {}
        self._lost = LostReply()
        self._target: Task | None = None  # the task that is cancelled
        self._has_ended_early = False  # the call has ended before it was cancelled
        self._error: Exception | None = None
        self._promises = Promises.of(
            self.server.guarantees,
            ttl=TTL,
            **dict.fromkeys(("idle_max", "leftover_max", "late_max", "answer_max", "renew_max"), self._soon),
        )

    def link(self, process: Process) -> Link:
        return LossyLink(process, self.server, self._lost) if process.name == "a" else super().link(process)

    def run(self) -> None:
        a, b, c = (self.add(name) for name in "abc")
        self.recorder.add(h.Healed(0.0))
        if self._case.call in _BUSY:
            b.start(self._acquire_and_release("b", b, starts_at=0.0, holds=FREE_AT))
        a.start(self._make_call(a))
        c.start(self._acquire_after_a("c", c, starts_at=STARTS_AT + 0.01))
        try:
            while self.world.now < ENDS_AT and not self._has_ended_early:
                self.world.run(self.world.now + 0.5)
        except Exception as raised:  # no error is expected
            self._error = raised
        self.recorder.add_leftovers(self.server.live())
        self.recorder.add(h.End(self.world.now))

    @property
    def was_reached(self) -> bool:
        return self._target is not None and self._target.was_cancelled

    def result(self) -> Cancellation:
        history = self.recorder.history
        verdict = judge(history, self._promises)
        return Cancellation(self._case, history, verdict, self._problem(verdict))

    @property
    def _soon(self) -> float:
        return SOON if self._case.lost is None else SOON_AFTER_LOSS

    def _problem(self, verdict: Verdict) -> str | None:
        if self._error is not None:
            return f"it ended with {self._error!r}"
        if verdict.gravest is not None:
            return verdict.gravest.message
        free = FREE_AT if self._case.call in _BUSY else STARTS_AT
        for name, client in (("c", "another client"), ("a again", "the cancelled client itself")):
            at = self._got.get(name)
            if at is None:
                return f"{client} never got the lock"
            if at > free + 2 * self._soon:
                return f"{client} got the lock {at - free:.3g} s late"
        return None

    # ── calls of the clients ─────────────────────────────────────────────────────────────────────────────────────

    async def _acquire_and_release(self, name: str, member: ClientProcess, *, starts_at: float, holds: float) -> None:
        await member.client.runtime.sleep(max(0.0, starts_at - self.world.now))
        lease = await self._acquire_and_hold(member, holds)
        self._got[name] = self.world.now - holds
        with contextlib.suppress(HoldfastError):  # its reply may be the lost one
            await member.client.release(lease)

    async def _acquire_after_a(self, name: str, member: ClientProcess, *, starts_at: float) -> None:
        if self._case.call not in _SEVERAL:
            await self._acquire_and_release(name, member, starts_at=starts_at, holds=HOLDS)
            return
        await member.client.runtime.sleep(max(0.0, starts_at - self.world.now))
        group = await self._acquire_all_and_hold(member, HOLDS)
        self._got[name] = self.world.now - HOLDS
        with contextlib.suppress(HoldfastError):
            await member.client.release_all(group)

    async def _make_call(self, a: ClientProcess) -> None:
        """Make the call, and acquire the lock again after it or after its cancellation."""
        await a.client.runtime.sleep(STARTS_AT)
        with contextlib.suppress(Cancelled, HoldfastError):  # the outcome is in the history
            await _CALLS[self._case.call](self, a)
        a.start(self._acquire_after_a("a again", a, starts_at=self.world.now), "again")

    async def _acquire(self, a: ClientProcess, timeout: float | None = None) -> None:
        lease = await self._cancel_during(a, a.client.acquire(a.lock(TTL), timeout))
        if lease is not None:
            await a.client.release(lease)

    async def _acquire_again(self, a: ClientProcess) -> None:
        """The second acquire of a lock uses the straight path, if the backend has one."""
        await a.client.release(await self._acquire_and_hold(a, 0.0))
        await self._acquire(a)

    async def _release_again(self, a: ClientProcess) -> None:
        await a.client.release(await self._acquire_and_hold(a, 0.0))
        await self._release(a)

    async def _acquire_with_timeout(self, a: ClientProcess) -> None:
        await self._acquire(a, timeout=(FREE_AT - STARTS_AT) / 2)

    async def _release(self, a: ClientProcess) -> None:
        await self._cancel_during(a, a.client.release(await self._acquire_and_hold(a, HOLDS)))

    async def _renew(self, a: ClientProcess) -> None:
        lease = await self._acquire_and_hold(a, HOLDS)
        try:
            await self._cancel_during(a, a.client.renew(lease))
        finally:
            await a.client.release(lease)

    async def _cancel_keeper(self, a: ClientProcess) -> None:
        """Cancel a release at once, so that it becomes a pending release, and then cancel the keeper."""
        lease = await self._acquire_and_hold(a, HOLDS)
        self._lost.begin(self._case.lost)
        self._target = next(task for task in a.process.tasks if task.name.endswith("/keeper"))
        self._arm(self._target, self._target.suspensions - 1)  # the keeper sleeps: this is its first suspension
        mine = a.client.runtime.task
        mine.cancel_at = mine.suspensions + 1
        await a.client.release(lease)

    async def _acquire_all(self, a: ClientProcess, timeout: float | None = None) -> None:
        group = await self._cancel_during(a, a.client.acquire_all(self._locks(a), timeout))
        if group is not None:
            await a.client.release_all(group)

    async def _acquire_all_with_timeout(self, a: ClientProcess) -> None:
        await self._acquire_all(a, timeout=(FREE_AT - STARTS_AT) / 2)

    async def _release_all(self, a: ClientProcess) -> None:
        await self._cancel_during(a, a.client.release_all(await self._acquire_all_and_hold(a, HOLDS)))

    async def _renew_all(self, a: ClientProcess) -> None:
        group = await self._acquire_all_and_hold(a, HOLDS)
        try:
            await self._cancel_during(a, a.client.renew_all(group))
        finally:
            await a.client.release_all(group)

    def _locks(self, member: ClientProcess) -> list[SimLock]:
        return [member.lock(TTL), member.client.lock(FIRST_LOCK, options={"ttl": TTL})]

    async def _acquire_all_and_hold(self, member: ClientProcess, seconds: float) -> SimLeaseGroup:
        group = await self._connected(lambda: member.client.acquire_all(self._locks(member), None))
        await member.client.runtime.sleep(seconds)
        return group

    async def _acquire_and_hold(self, member: ClientProcess, seconds: float) -> SimLease:
        lease = await self._connected(lambda: member.client.acquire(member.lock(TTL), None))
        await member.client.runtime.sleep(seconds)
        return lease

    async def _connected(self, acquire: Callable[[], Awaitable[T | None]]) -> T:
        """The result of an acquire without a timeout, which is repeated if it could not connect."""
        try:
            acquired = await acquire()
        except BackendUnavailable:
            if self._case.lost is None:
                raise
            # The lost reply was one to a connect request. The error is reported and nothing has changed, so retry.
            acquired = await acquire()
        if acquired is None:
            raise AssertionError("an acquire without a timeout ends with a lease")
        return acquired

    async def _cancel_during(self, a: ClientProcess, call: Awaitable[T]) -> T:
        """Run the call with a cancellation armed, which is disarmed when the call returns."""
        self._lost.begin(self._case.lost)
        self._target = a.client.runtime.task
        self._arm(self._target, self._target.suspensions)
        try:
            return await call
        finally:
            self._target.cancel_at = None
            self._has_ended_early = not self._target.was_cancelled

    def _arm(self, task: Task, before: int) -> None:
        case = self._case
        task.cancel_after = case.after
        task.cancel_at = before + case.suspension
        if task.cancel_at == task.suspensions:
            task.cancel(case.after)


_BUSY = ("acquire, busy", "acquire, timeout", "acquire all, busy", "acquire all, timeout")
_CALLS: dict[str, Callable[[_World, ClientProcess], Awaitable[None]]] = {
    "acquire, free": _World._acquire,
    "acquire again, free": _World._acquire_again,
    "acquire, busy": _World._acquire,
    "acquire, timeout": _World._acquire_with_timeout,
    "release": _World._release,
    "release again": _World._release_again,
    "renew": _World._renew,
    "keeper": _World._cancel_keeper,
    "acquire all, free": _World._acquire_all,
    "acquire all, busy": _World._acquire_all,
    "acquire all, timeout": _World._acquire_all_with_timeout,
    "release all": _World._release_all,
    "renew all": _World._renew_all,
}
_SEVERAL = [call for call in _CALLS if call.partition(",")[0].endswith("all")]


class LostReply:
    """Counts replies from the start of the call to find the lost one."""

    def __init__(self) -> None:
        self._left: int | None = None

    def begin(self, number: int | None) -> None:
        self._left = number

    def is_next(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left == 0


class LossyLink(Link):
    """Loses one reply; has no other faults."""

    def __init__(self, process: Process, server: Server, lost: LostReply) -> None:
        super().__init__(process, server, CALM)
        self._lost = lost

    def happens(self, kind: str, probability: float) -> bool:
        return kind == "lose_reply" and self._lost.is_next()
