"""The connections of one client to one server, for one request after the other. The one used last is used next.

A connection counts against the limit from before it is opened until it is closed or given back, each by explicit code:
an exception that refers to it, kept by a caller for as long as it likes, changes nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from holdfast.backends.net.polling import READ
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError
from holdfast.runtimes import system

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller
    from holdfast.core.ports import Runtime

CONNECTIONS_MAX = 16  # open at the same time, unless `connections=` says otherwise
IDLE_KEPT = 2  # idle connections that are kept for any time
IDLE_MAX = 10.0  # seconds after which any other idle one is closed
IDLE_CHECK = 0.2  # seconds unused after which a connection is checked, where the check of each would be felt
_LAST_CHANCE = 0.1  # seconds for an answer on a connection that seems to have vanished
_FREE_CHECK = 0.05  # seconds between checks for a free connection, should its wake-up be lost


T = TypeVar("T")
W = TypeVar("W", bound="Connection")
Reconsider = Callable[[float], Coroutine[Any, Any, float]]


class Connection(Protocol):
    """One connection."""

    used_at: float  # when its last request began: at that time it was alive, if it has answered
    # Set while it may have vanished without a word (a NAT, a virtual address that moved): it was idle, and has not
    # answered since. If no answer comes in the first half of its time, a wire awaits this, for a better deadline.
    reconsider: Reconsider | None

    @property
    def is_open(self) -> bool: ...

    def is_dead(self) -> bool:
        """The server has closed it, or has sent something without a request."""

    def close(self) -> None: ...


class ConnectionPool(Generic[W]):
    """`run`; or `take() or await wait(deadline)`, then in every case `give` or `give_after`."""

    def __init__(
        self,
        url: str,
        connect: Callable[[float], Coroutine[Any, Any, W]],
        runtime: Runtime,
        connections_max: int = CONNECTIONS_MAX,
        *,
        server: str = "",
        idle_check: float = 0.0,
    ) -> None:
        """`server`: which of several it is, for error messages. `idle_check`: as IDLE_CHECK."""
        self._url, self._connect, self._now = url, connect, runtime.now
        self._max, self._server, self._idle_check = connections_max, server, idle_check
        self.idle: list[W] = []  # every step on it is atomic, so that threads need no mutex
        # All that are open or being opened. Weakly, only for an interrupt that comes between two steps of ours.
        self._counted: weakref.WeakSet[W | _Opening] = weakref.WeakSet()
        self._mutex = runtime.mutex()
        self.waiting = 0
        self._freed = runtime.event()
        self.is_closed = False
        runtime.on_idle(self.report_idle)

    async def run(self, work: Callable[[W], Awaitable[T]], deadline: float) -> T:
        """Do it with a connection.

        Raises:
            BackendUnavailable: there was no connection until then, or as connecting raises it.
        """
        connection = self.take(self._now()) or await self.wait(deadline)
        try:
            result = await work(connection)
        except BaseException as error:
            self.give_after(connection, error)
            raise
        self.give(connection)
        return result

    def take(self, now: float) -> W | None:
        """One that is idle, if there is any."""
        while (connection := pop(self.idle)) is not None:
            if now - connection.used_at < self._idle_check or not connection.is_dead():
                connection.used_at, connection.reconsider = now, self.reconsider
                return connection
            self.discard(connection)
        return None

    async def wait(self, deadline: float) -> W:
        """One that becomes idle, or one more.

        Raises:
            BackendUnavailable: there was none until then, or as connecting raises it.
        """
        opening = _Opening()
        while not self._has_room_for(opening):
            now = self._now()
            if now >= deadline:
                problem = f"{self._server}: " if self._server else ""
                problem += f"all {self._max} connections were in use all the time"
                raise BackendUnavailable(backend=self._url, problem=problem)
            self.waiting += 1
            try:
                self._freed.clear()
                if (connection := self.take(now)) is not None:
                    return connection
                await self._freed.wait(min(deadline, now + _FREE_CHECK))
            finally:
                self.waiting -= 1
            if (connection := self.take(self._now())) is not None:
                return connection
        return await self._open(opening, deadline)

    async def _open(self, opening: _Opening, deadline: float) -> W:
        try:
            connection = await self._connect(deadline)
            connection.used_at, connection.reconsider = self._now(), None
            self._counted.add(connection)
        finally:
            self._counted.discard(opening)
        return connection

    async def reconsider(self, deadline: float) -> float:
        """Until when to wait for an answer that did not come in the first half of its time.

        A server that answers on a new connection is not just slow: the old connection has vanished. Then the rest of
        the time is left to the caller, who repeats the request by its nonce, on that new connection.
        """
        opening = _Opening()
        if not self._has_room_for(opening):
            with contextlib.suppress(IndexError):
                self.discard(self.idle.pop(0))  # which has been idle for longer still
            if not self._has_room_for(opening):
                return deadline
        now = self._now()
        try:
            connection = await self._open(opening, now + (deadline - now) / 2)
        except HoldfastError:
            return deadline
        self.give(connection)
        return min(deadline, self._now() + _LAST_CHANCE)

    def give(self, connection: W) -> None:
        """It is idle again, or closed."""
        if self.is_closed or not connection.is_open:
            self.discard(connection)
            return
        self.idle.append(connection)
        self.look_after(connection)

    def look_after(self, connection: W) -> None:
        """After one was appended to `idle`."""
        if len(self.idle) > IDLE_KEPT:
            self._close_unused(connection.used_at)
        if self.is_closed:
            self.close()  # which may not have seen this one
        elif self.waiting:
            self._freed.set()

    def give_after(self, connection: W, outcome: object) -> None:
        """The same after a request that ended in this way: an exception, or anything else."""
        if isinstance(outcome, BackendError) and not connection.is_open:
            self.fail(connection)
        elif isinstance(outcome, Exception) or not isinstance(outcome, BaseException):
            self.give(connection)
        else:
            self.discard(connection)  # an interrupt or a cancellation, perhaps in the middle of an answer

    def fail(self, connection: W) -> None:
        """No answer came on it. Those that are idle since before that request may have vanished with it."""
        self.discard(connection)
        for other in list(self.idle):
            if other.used_at <= connection.used_at:
                try:
                    self.idle.remove(other)
                except ValueError:  # taken meanwhile
                    continue
                self.discard(other)

    def discard(self, connection: W) -> None:
        """Close it and count it no more."""
        connection.close()
        self._counted.discard(connection)
        if self.waiting:
            self._freed.set()

    def close(self) -> None:
        """Keep no connection. A request that is under way can still be done; its connection is closed after that."""
        self.is_closed = True
        while (connection := pop(self.idle)) is not None:
            self.discard(connection)

    def report_idle(self) -> None:
        """The client holds nothing, so the connections of its last burst are not needed any more."""
        while len(self.idle) > IDLE_KEPT:
            try:
                self.discard(self.idle.pop(0))
            except IndexError:  # taken meanwhile
                return

    def abandon(self) -> None:
        """In a forked child. The connections themselves are abandoned by those that opened them."""
        self.is_closed = True
        self.idle.clear()

    def _close_unused(self, now: float) -> None:
        """After a burst, connections that are not needed any more."""
        while len(self.idle) > IDLE_KEPT:
            try:
                if now - self.idle[0].used_at <= IDLE_MAX:
                    return
                self.discard(self.idle.pop(0))
            except IndexError:  # taken meanwhile
                return

    def _has_room_for(self, opening: _Opening) -> bool:
        with self._mutex:
            if len(self._counted) >= self._max:
                return False
            self._counted.add(opening)  # from here on: others may open theirs meanwhile
            return True


class _Opening:
    """Stands for a connection that is being opened."""

    __slots__ = ("__weakref__",)


async def ready(connection: Connection, poller: Poller, descriptor: int, events: int, deadline: float) -> bool:
    """Wait for the socket of this connection: True when it is ready, False when the time is up."""
    wanted, reconsider = [(descriptor, events)], connection.reconsider
    if reconsider is None:
        return bool(await poller.ready(wanted, deadline))
    now = system.now()
    if not await poller.ready(wanted, now + (deadline - now) / 2):
        deadline = await reconsider(deadline)
        if not await poller.ready(wanted, deadline):
            return False
    if events & READ:
        connection.reconsider = None  # it is alive
    return True


def pop(idle: list[T]) -> T | None:
    """The last one, if there is any: in one step, whatever other threads do."""
    try:
        return idle.pop()
    except IndexError:
        return None
