"""What the two plain methods share: one row for each lock, one holder, no tickets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from holdfast.backends.mysql.marks import Marks
from holdfast.backends.mysql.protocol import LACKS, described, lock_id, method_conflict, promised, renewed
from holdfast.backends.mysql.statements import BREAK, INSPECT, LOCKS, STATE
from holdfast.core.stepwise import OneByOne
from holdfast.core.tickets import Gone, Granted, Live, LockInfo, Ticket, Waiting
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown, Unsupported
from holdfast.guarantees import Guarantees
from holdfast.primitives import Lacks

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort
    from holdfast.core.ports import Runtime

T = TypeVar("T")


class State(NamedTuple):
    """A lock's row, as somebody sees it who locks nothing."""

    version: int
    method: str
    nonce: str | None  # of who is in, or of who has run out
    remaining: float  # seconds
    info: str

    @property
    def is_held(self) -> bool:
        return self.nonce is not None and self.remaining > 0


class PlainBackend(OneByOne, Marks, ABC):
    """A lock that is one row."""

    method: ClassVar[str]
    troubles: tuple[str, ...] = ()  # it works, or it does not
    lifelines: tuple[int, ...] = ()  # the server cannot see that a holder has died

    def __init__(self, url: str, port: MysqlPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._unheard: set[str] = set()  # tickets of which an enter had no answer: it may still come

    @property
    def lacks(self) -> Lacks:
        return LACKS[self.method]

    @property
    def guarantees(self) -> Guarantees:
        return promised(self.method, self._port)

    async def enter(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not ticket.exclusive:
            raise Unsupported(
                backend=f"mysql with method={self.method}",
                what="readers and semaphores",
                others=("mysql with method=unique",),
            )
        try:
            return await self._enter(ticket, deadline)
        except BaseException as error:
            # No answer, or cancelled or interrupted before it. Unless the server has refused it, it may still come.
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
                self._unheard.add(ticket.nonce)
            raise

    @abstractmethod
    async def wait(self, ticket: Ticket, until: float) -> None: ...

    async def leave(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        return [await _or_error(self._give_back(ticket, deadline)) for ticket in tickets]

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> Sequence[Live | Gone | BackendError]:
        return await renewed(self._port, self._runtime, tickets, deadline)

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        found = described((await self._port.ask(INSPECT, (lock_id(name),), deadline=deadline)).rows)
        return found[0] if found else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        answer = await self._port.ask(LOCKS, (prefix.encode(),), deadline=deadline)
        return sorted(described(answer.rows), key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        if not 0 < fence < 2**63:
            return False  # no fence of ours
        answer = await self._port.ask(BREAK, (lock_id(name), fence), deadline=deadline)
        return answer.rows[0][0] == "1"

    async def close(self) -> None:
        await self._port.close()

    def abandon(self) -> None:
        self._port.abandon()

    async def _state(self, name: str, deadline: float) -> State | None:
        """The lock's row, if there is one.

        Raises:
            NameConflict: the lock is in use with another method.
        """
        rows = (await self._port.ask(STATE, (lock_id(name),), deadline=deadline)).rows
        if not rows:
            return None
        version, method, nonce, remaining, info, has_tickets = rows[0]
        state = State(int(version or 0), method or "", nonce, int(remaining or 0) / 1e6, info or "")
        if state.method != self.method and (state.is_held or has_tickets == "1"):
            raise method_conflict(name, state.method)
        return state

    @abstractmethod
    async def _enter(self, ticket: Ticket, deadline: float) -> Granted | Waiting: ...

    @abstractmethod
    async def _give_back(self, ticket: Ticket, deadline: float) -> bool: ...


async def _or_error(answer: Awaitable[T]) -> T | BackendError:
    try:
        return await answer
    except BackendError as error:
        return error
