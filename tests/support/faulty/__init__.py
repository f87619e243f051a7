"""faulty://name: the memory backend with planned faults: lost or delayed requests and replies, refusals, bugs.

faults = Faults.of("faulty://x")
faults.plan("renew", LOST, LOST, OK)      the first two renewals get no answer, the third and later ones do
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.ports import Backend, Record, Runtime
from holdfast.core.tickets import Claim, Granted, LeaseGone, Live, LockInfo, Waiting
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError, OutcomeUnknown, QuorumError
from holdfast.guarantees import Guarantees

T = TypeVar("T")

OK = "ok"
DOWN = "down"  # no request is sent
LOST = "lost"  # the request is lost on the way
LATE = "late"  # no answer; the request is executed when the test calls `faults.arrive()`
NO_REPLY = "no reply"  # the request is executed, but its reply is lost
BUG = "bug"  # the adapter raises an unexpected error
REFUSED = "refused"  # the server refuses the request: nothing is executed
TOO_FEW = "too few"  # only a minority of several servers executed it
NOT_ALL = "not all"  # of several tickets, the server of the first one does not answer and executes nothing


class Faults:
    """The outcomes of the next calls of each method. The last entry of a plan applies to all later calls."""

    _all: dict[str, Faults] = {}  # noqa: RUF012  (shared on purpose: the Faults of each URL)

    def __init__(self) -> None:
        self._plans: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, str]] = []  # method and outcome
        self.last: Any = OK
        self.promises: Guarantees | None = None  # None: the guarantees of memory://
        self.late: list[Callable[[], Awaitable[object]]] = []

    @classmethod
    def of(cls, url: str) -> Faults:
        return cls._all.setdefault(url, cls())

    def plan(self, verb: str, *outcomes: Any) -> None:
        self._plans[verb] = list(outcomes)

    async def arrive(self) -> None:
        """Execute the late requests."""
        while self.late:
            await self.late.pop(0)()

    def has_plan(self, verb: str) -> bool:
        return verb in self._plans

    def next(self, verb: str) -> Any:
        plan = self._plans.get(verb, [OK])
        outcome = plan.pop(0) if len(plan) > 1 else plan[0]
        self.calls.append((verb, str(outcome)))
        self.last = outcome
        return outcome

    def count(self, verb: str) -> int:
        return sum(1 for called, _ in self.calls if called == verb)


class FaultyBackend:
    """Every method uses `_send`. An outcome that is a number is a delay of the reply, in seconds.

    The plan of `inspect` may contain its answer, a LockInfo.
    """

    def __init__(self, url: str, inner: MemoryBackend, runtime: Runtime) -> None:
        self.url = url
        self.lacks = inner.lacks
        self.warnings = inner.warnings
        self.liveness_fds = inner.liveness_fds
        self._inner = inner
        self._runtime = runtime
        self._faults = Faults.of(url)
        self._is_closed = False

    @property
    def guarantees(self) -> Guarantees:
        return self._faults.promises or self._inner.guarantees

    async def _send(self, verb: str, work: Callable[[], Awaitable[T]]) -> T:
        outcome = self._faults.next(verb)
        if self._is_closed:
            raise BackendUnavailable(backend=self.url, problem="the client is closed")
        if outcome == DOWN:
            raise BackendUnavailable(backend=self.url, problem="planned: down")
        if outcome == LOST:
            raise OutcomeUnknown(backend=self.url, problem="planned: request lost")
        if outcome == LATE:
            self._faults.late.append(work)
            raise OutcomeUnknown(backend=self.url, problem="planned: request delayed")
        if outcome == REFUSED:
            raise ConfigurationError("planned: refused")
        if outcome == TOO_FEW:
            raise QuorumError(backend=self.url, needed=2, nodes=3, causes={})
        if outcome == BUG:
            raise ZeroDivisionError("planned: a bug")
        if callable(outcome):  # suspends before and after the request, as a real connection does
            await outcome()
        result = await work()
        if callable(outcome):
            await outcome()
        if outcome == NO_REPLY:
            raise OutcomeUnknown(backend=self.url, problem="planned: reply lost")
        if isinstance(outcome, int | float):
            await self._runtime.sleep(outcome)
        return result

    async def try_acquire(self, ticket: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        return await self._send("try_acquire", lambda: self._inner.try_acquire(ticket, queue=queue, deadline=deadline))

    async def try_acquire_all(self, tickets: Sequence[Claim], *, deadline: float) -> Sequence[Granted | Waiting]:
        return await self._send("try_acquire_all", lambda: self._inner.try_acquire_all(tickets, deadline=deadline))

    async def wait(self, ticket: Claim, until: float) -> None:
        await self._send("wait", lambda: self._inner.wait(ticket, until))

    async def release(self, tickets: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        async def work() -> Sequence[bool | BackendError]:
            if self._faults.last != NOT_ALL:
                return await self._inner.release(tickets, deadline=deadline)
            return [self._no_answer(), *await self._inner.release(tickets[1:], deadline=deadline)]

        return await self._send("release", work)

    async def renew(self, tickets: Sequence[Claim], *, deadline: float) -> Sequence[Live | LeaseGone | BackendError]:
        async def work() -> Sequence[Live | LeaseGone | BackendError]:
            if self._faults.last != NOT_ALL:
                return await self._inner.renew(tickets, deadline=deadline)
            return [self._no_answer(), *await self._inner.renew(tickets[1:], deadline=deadline)]

        return await self._send("renew", work)

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        return await self._send("adopt", lambda: self._inner.adopt(nonce, claim, deadline=deadline))

    def _no_answer(self) -> BackendError:
        return OutcomeUnknown(backend=self.url, problem="planned: no answer of this server")

    def intact(self, store: object) -> bool:
        return self._inner.intact(None)

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        async def work() -> LockInfo:
            planned = self._faults.last
            return planned if isinstance(planned, LockInfo) else await self._inner.inspect(name, deadline=deadline)

        if not self._faults.has_plan("inspect"):  # tests read the real state all the time
            return await self._inner.inspect(name, deadline=deadline)
        return await self._send("inspect", work)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return await self._inner.locks(prefix, deadline=deadline)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._inner.break_lock(name, fence, deadline=deadline)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._send(
            "advance_register",
            lambda: self._inner.advance_register(name, number, nonce=nonce, keep=keep, deadline=deadline),
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> Sequence[int]:
        return await self._send("read_registers", lambda: self._inner.read_registers(names, deadline=deadline))

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        if not expected and record is None and not self._faults.has_plan("read_record"):
            return await self._inner.swap_record(name, expected, record, keep=keep, deadline=deadline)
        verb = "swap_record" if expected or record is not None else "read_record"
        return await self._send(
            verb, lambda: self._inner.swap_record(name, expected, record, keep=keep, deadline=deadline)
        )

    async def close(self) -> None:
        self._is_closed = True
        await self._inner.close()

    def abandon(self) -> None:
        self._inner.abandon()


def _is_a_backend(backend: FaultyBackend) -> Backend:
    return backend  # checked by mypy
