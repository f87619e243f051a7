"""Cancel a call at its k-th suspension, for every k there is: whatever was under way, nothing is left behind.

Calls for one lock, and for two at once, of which the first is free and the second the one that the others want.

Client `a` makes a call and is cancelled, at the moment it suspends or when the server has just done what it was asked;
in a calm world, or in one where the reply to a request of `a` gets lost. Then `c`, who waits, has to get the lock soon,
`a` has to get it again, and every promise has to be kept. The ttl is far too long to be of help.

The keeper is cancelled too, as asyncio.run does at its end, while it has a debt to pay: that gets a last chance.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.checking import Promises, Verdict, judge
from holdfast.checking import history as h
from holdfast.errors import BackendUnavailable, HoldfastError
from holdfast.sim.choices import Choices
from holdfast.sim.client import SimLease, SimLeaseGroup, SimLock
from holdfast.sim.faults import CALM
from holdfast.sim.network import Link
from holdfast.sim.process import Process
from holdfast.sim.run import Plan, quiet
from holdfast.sim.scenarios import ClientProcess, SmallWorld
from holdfast.sim.world import Cancelled, Task

if TYPE_CHECKING:
    from holdfast.sim.servers.base import Server

T = TypeVar("T")

TTL = 300.0
BEFORE_IT = "a lock"  # in the order in which several are taken it comes before the one that all want
BEGINS, FREE_AGAIN = 1.0, 2.0  # when `a` makes its call; when `b` gives the lock back, if it had it
HOLDS = 0.05
SOON = 2.0  # seconds: with a look-again at the latest
SOON_AFTER_LOSS = 8.0  # the same when a reply was lost: the request's own time has to be up before
LASTS = 40.0
REPLIES = 4  # of the first so many replies, each gets lost once
SERVED = 1.5 * CALM.delay_min  # when a request has been done, and its reply is on its way


class Case(NamedTuple):
    """One call, cancelled in one place."""

    call: str
    suspension: int  # 1 is the first
    after: float  # seconds into that suspension
    lost: int | None  # of the replies to `a`, this one gets lost

    def __str__(self) -> str:
        when = "once the server has done it" if self.after else "at once"
        lost = "" if self.lost is None else f", reply {self.lost} lost"
        return f"{self.call}: cancelled at suspension {self.suspension}, {when}{lost}"


class Cancellation(NamedTuple):
    """What came of it."""

    case: Case
    history: list[h.Event]
    verdict: Verdict
    problem: str | None  # in a sentence


def cancellations(plan: Plan) -> Iterator[Cancellation]:
    """All of them. Each call is cancelled one suspension later, until it ends before that."""
    for call, after, lost in itertools.product(_CALLS, (0.0, SERVED), (None, *range(1, REPLIES + 1))):
        for suspension in itertools.count(1):
            with quiet():
                world = _World(plan, Case(call, suspension, after, lost))
                try:
                    world.live()
                finally:
                    world.end()
            if not world.was_reached:
                break
            yield world.result()


class _World(SmallWorld):
    """`b` may have the lock first, `a` is cancelled, `c` waits."""

    def __init__(self, plan: Plan, case: Case) -> None:
        super().__init__(plan, Choices(decisions=()))
        self._case = case
        self._got: dict[str, float] = {}
        self._lost = LostReply()
        self._target: Task | None = None  # who is cancelled
        self._error: Exception | None = None
        self._promises = Promises.of(
            self.server.guarantees,
            ttl=TTL,
            **dict.fromkeys(("idle_max", "leftover_max", "late_max", "answer_max", "renew_max"), self._soon),
        )

    def link(self, process: Process) -> Link:
        return LossyLink(process, self.server, self._lost) if process.name == "a" else super().link(process)

    def live(self) -> None:
        a, b, c = (self.add(name) for name in "abc")
        self.recorder.add(h.Healed(0.0))
        if self._case.call in _BUSY:
            b.start(self._take("b", b, begins=0.0, holds=FREE_AGAIN))
        a.start(self._make_the_call(a))
        c.start(self._take_what_a_took("c", c, begins=BEGINS + 0.01))
        try:
            self.world.run(LASTS)
        except Exception as raised:  # nothing is expected to raise here
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
        free = FREE_AGAIN if self._case.call in _BUSY else BEGINS
        for name, who in (("c", "somebody else"), ("a again", "the cancelled client itself")):
            at = self._got.get(name)
            if at is None:
                return f"{who} never got the lock"
            if at > free + 2 * self._soon:
                return f"{who} got the lock {at - free:.3g} s late"
        return None

    # ── what the clients do ──────────────────────────────────────────────────────────────────────────────────────

    async def _take(self, name: str, member: ClientProcess, *, begins: float, holds: float) -> None:
        await member.client.runtime.sleep(max(0.0, begins - self.world.now))
        lease = await self._held(member, holds)
        self._got[name] = self.world.now - holds
        with contextlib.suppress(HoldfastError):  # its reply may be the one that gets lost
            await member.client.release(lease)

    async def _take_what_a_took(self, name: str, member: ClientProcess, *, begins: float) -> None:
        if self._case.call not in _SEVERAL:
            await self._take(name, member, begins=begins, holds=HOLDS)
            return
        await member.client.runtime.sleep(max(0.0, begins - self.world.now))
        bundle = await self._all_held(member, HOLDS)
        self._got[name] = self.world.now - HOLDS
        with contextlib.suppress(HoldfastError):
            await member.client.release_all(bundle)

    async def _make_the_call(self, a: ClientProcess) -> None:
        """And after it, or after its cancellation, take the lock once more."""
        await a.client.runtime.sleep(BEGINS)
        with contextlib.suppress(Cancelled, HoldfastError):  # whatever came of it, it is in the history
            await _CALLS[self._case.call](self, a)
        a.start(self._take_what_a_took("a again", a, begins=self.world.now), "again")

    async def _acquire(self, a: ClientProcess, timeout: float | None = None) -> None:
        lease = await self._cancelled(a, a.client.acquire(a.lock(TTL), timeout))
        if lease is not None:
            await a.client.release(lease)

    async def _acquire_for_a_while(self, a: ClientProcess) -> None:
        await self._acquire(a, timeout=(FREE_AGAIN - BEGINS) / 2)

    async def _release(self, a: ClientProcess) -> None:
        await self._cancelled(a, a.client.release(await self._held(a, HOLDS)))

    async def _renew(self, a: ClientProcess) -> None:
        lease = await self._held(a, HOLDS)
        try:
            await self._cancelled(a, a.client.renew(lease))
        finally:
            await a.client.release(lease)

    async def _owe(self, a: ClientProcess) -> None:
        """A release that is cancelled at once leaves a debt. Then it is the keeper's turn to be cancelled."""
        lease = await self._held(a, HOLDS)
        self._lost.begin(self._case.lost)
        self._target = next(task for task in a.process.tasks if task.name.endswith("/keeper"))
        self._arm(self._target, self._target.suspensions - 1)  # it is in its first suspension, asleep
        mine = a.client.runtime.task
        mine.cancel_at = mine.suspensions + 1
        await a.client.release(lease)

    async def _acquire_all(self, a: ClientProcess, timeout: float | None = None) -> None:
        bundle = await self._cancelled(a, a.client.acquire_all(self._both(a), timeout))
        if bundle is not None:
            await a.client.release_all(bundle)

    async def _acquire_all_for_a_while(self, a: ClientProcess) -> None:
        await self._acquire_all(a, timeout=(FREE_AGAIN - BEGINS) / 2)

    async def _release_all(self, a: ClientProcess) -> None:
        await self._cancelled(a, a.client.release_all(await self._all_held(a, HOLDS)))

    async def _renew_all(self, a: ClientProcess) -> None:
        bundle = await self._all_held(a, HOLDS)
        try:
            await self._cancelled(a, a.client.renew_all(bundle))
        finally:
            await a.client.release_all(bundle)

    def _both(self, member: ClientProcess) -> list[SimLock]:
        return [member.lock(TTL), member.client.lock(BEFORE_IT, options={"ttl": TTL})]

    async def _all_held(self, member: ClientProcess, seconds: float) -> SimLeaseGroup:
        bundle = await member.client.acquire_all(self._both(member), None)
        if bundle is None:
            raise AssertionError("an acquire without a timeout ends with a lease")
        await member.client.runtime.sleep(seconds)
        return bundle

    async def _held(self, member: ClientProcess, seconds: float) -> SimLease:
        try:
            lease = await member.client.acquire(member.lock(TTL), None)
        except BackendUnavailable:
            if self._case.lost is None:
                raise
            # The reply that got lost was one to connecting. That is told at once, and nothing has changed: ask again.
            lease = await member.client.acquire(member.lock(TTL), None)
        if lease is None:
            raise AssertionError("an acquire without a timeout ends with a lease")
        await member.client.runtime.sleep(seconds)
        return lease

    async def _cancelled(self, a: ClientProcess, call: Awaitable[T]) -> T:
        """The call, with a cancellation on its way. Once it has returned, that comes no more."""
        self._lost.begin(self._case.lost)
        self._target = a.client.runtime.task
        self._arm(self._target, self._target.suspensions)
        try:
            return await call
        finally:
            self._target.cancel_at = None

    def _arm(self, task: Task, before: int) -> None:
        case = self._case
        task.cancel_after = case.after
        task.cancel_at = before + case.suspension
        if task.cancel_at == task.suspensions:
            task.cancel(case.after)


_BUSY = ("acquire, busy", "acquire, time up", "acquire all, busy", "acquire all, time up")
_CALLS: dict[str, Callable[[_World, ClientProcess], Awaitable[None]]] = {
    "acquire, free": _World._acquire,
    "acquire, busy": _World._acquire,
    "acquire, time up": _World._acquire_for_a_while,
    "release": _World._release,
    "renew": _World._renew,
    "keeper": _World._owe,
    "acquire all, free": _World._acquire_all,
    "acquire all, busy": _World._acquire_all,
    "acquire all, time up": _World._acquire_all_for_a_while,
    "release all": _World._release_all,
    "renew all": _World._renew_all,
}
_SEVERAL = [call for call in _CALLS if call.partition(",")[0].endswith("all")]


class LostReply:
    """Which one it is; counted from when the call begins."""

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
    """Loses one reply, and nothing else."""

    def __init__(self, process: Process, server: Server, lost: LostReply) -> None:
        super().__init__(process, server, CALM)
        self._lost = lost

    def happens(self, kind: str, probability: float) -> bool:
        return kind == "lose_reply" and self._lost.is_next()
