"""The connections of one client to one server, each for one request at a time. The most recently used one is used next.

`ServerPools` are the connections to several servers.

A connection counts against the limit from before it is opened until explicit code closes it or puts it back. A caller
that keeps an exception which refers to the connection does not change the count.

Callers that wait for a connection are served in the order of their arrival, and each free connection wakes one of them.
Otherwise, with many more threads than connections, most wake-ups would be in vain, and some callers would never get a
connection.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.backends.net.poller import READ, Poller
from holdfast.core.ports import Event, Runtime
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError
from holdfast.runtimes import system
from holdfast.url_parts import Node, integer

CONNECTIONS_MAX = 16  # open at the same time, if the URL has no `connections=`
CONNECTIONS = integer(
    "connections",
    str(CONNECTIONS_MAX),
    "connections to one server that the requests of a client may use at the same time; more requests wait",
)._replace(field="max_connections")
IDLE_KEPT = 2  # idle connections that are never closed for being idle
IDLE_MAX = 10.0  # seconds after which any other idle connection is closed
IDLE_CHECK = 0.2  # seconds without use after which a connection is checked, where a check per request is too slow
_GRACE = 0.1  # seconds that an answer may still take on a connection that has probably vanished
# Seconds between checks for a free connection, in case a wake-up is lost: by the first waiting caller, by the others.
_FREE_CHECK_FIRST, _FREE_CHECK = 0.05, 1.0


T = TypeVar("T")
C = TypeVar("C", bound="Connection")
Probe = Callable[[float], Coroutine[Any, Any, float]]


class Connection(Protocol):
    """One connection."""

    used_at: float  # when its last request began: at that time it was alive, if it has answered
    # Set while the connection may have vanished silently (a NAT, a virtual address that moved): it was idle and has
    # not answered since. If no answer arrives in the first half of the time, the connection awaits this with its
    # deadline and gets a new deadline.
    probe: Probe | None

    @property
    def is_open(self) -> bool: ...

    def is_dead(self) -> bool:
        """The server has closed it, or has sent data without a request."""

    def close(self) -> None: ...


class ConnectionPool(Generic[C]):
    """Use `run`; or `get_idle() or await open_or_wait(deadline)`, always followed by `put` or `put_after`."""

    def __init__(
        self,
        url: str,
        connect: Callable[[float], Coroutine[Any, Any, C]],
        runtime: Runtime,
        connections_max: int = CONNECTIONS_MAX,
        *,
        server: str = "",
        idle_check: float = 0.0,
    ) -> None:
        """`server` names one server of several in error messages. `idle_check` is described at IDLE_CHECK."""
        self._url, self._connect, self._now, self._runtime = url, connect, runtime.now, runtime
        self._max, self._server, self._idle_check = connections_max, server, idle_check
        self.idle: list[C] = []  # every operation on it is atomic, so that threads need no mutex
        # All connections that are open or being opened. Weak references are a backstop: an interrupt between two
        # statements of this class must not make a connection count forever.
        self._counted: weakref.WeakSet[C | _Opening] = weakref.WeakSet()
        self._mutex = runtime.mutex()
        # In the order of their arrival. Weak references, for the same reason.
        self.waiters: deque[weakref.ref[_Waiter]] = deque()
        self.is_closed = False
        runtime.on_idle(self.close_surplus)

    async def run(self, work: Callable[[C], Awaitable[T]], deadline: float) -> T:
        """Run `work` with a connection.

        Raises:
            BackendUnavailable: no connection became free before the deadline, or connecting failed.
        """
        connection = self.get_idle(self._now()) or await self.open_or_wait(deadline)
        try:
            result = await work(connection)
        except BaseException as error:
            self.put_after(connection, error)
            raise
        self.put(connection)
        return result

    def get_idle(self, now: float) -> C | None:
        """An idle connection, or None. Also None if callers wait for a connection: they are served first."""
        return None if self.waiters else self._take_idle(now)

    def _take_idle(self, now: float) -> C | None:
        while (connection := pop(self.idle)) is not None:
            if now - connection.used_at < self._idle_check or not connection.is_dead():
                connection.used_at, connection.probe = now, self.probe
                return connection
            self.discard(connection)
        return None

    async def open_or_wait(self, deadline: float) -> C:
        """Open a connection, or wait until one is idle if the limit is reached.

        Raises:
            BackendUnavailable: no connection became free before the deadline, or connecting failed.
        """
        opening = _Opening()
        if self.waiters or not self._reserve(opening):
            connection = await self._wait_for_idle(opening, deadline)
            if connection is not None:
                return connection
        return await self._open(opening, deadline)

    async def _wait_for_idle(self, opening: _Opening, deadline: float) -> C | None:
        """Wait for an idle connection. None: one was closed, and `opening` counts in its place."""
        waiter = _Waiter(self._runtime.event())
        try:
            self.waiters.append(waiter.ref)
            may_take = False
            while True:
                now = self._now()
                is_first = self._first_waiter() is waiter
                if is_first or may_take:
                    if (connection := self._take_idle(now)) is not None:
                        return connection
                    if self._reserve(opening):
                        return None
                if now >= deadline:
                    problem = f"{self._server}: " if self._server else ""
                    problem += f"all {self._max} connections were in use all the time"
                    raise BackendUnavailable(backend=self._url, problem=problem)
                check_after = _FREE_CHECK_FIRST if is_first else _FREE_CHECK
                may_take = not await waiter.event.wait(min(deadline, now + check_after))
                waiter.event.clear()
        finally:
            with self._mutex, contextlib.suppress(ValueError):
                self.waiters.remove(waiter.ref)
            self._wake_first()  # another waiter is the first one from now on

    def _first_waiter(self) -> _Waiter | None:
        with self._mutex:
            return _first_alive(self.waiters)

    def _wake_first(self) -> None:
        waiter = self._first_waiter()
        if waiter is not None:
            waiter.event.set()

    async def _open(self, opening: _Opening, deadline: float) -> C:
        try:
            connection = await self._connect(deadline)
            connection.used_at, connection.probe = self._now(), None
            self._counted.add(connection)
        finally:
            self._counted.discard(opening)
        return connection

    async def probe(self, deadline: float) -> float:
        """Open another connection to find out whether the server is slow or the old connection has vanished.

        Called when no answer has arrived in the first half of the time. Returns until when to wait for it. If the
        server accepts a new connection, the old one has vanished: the wait ends soon, and the caller has the rest of
        the time to repeat the request, identified by its nonce, on the new connection.
        """
        opening = _Opening()
        if not self._reserve(opening):
            with contextlib.suppress(IndexError):
                self.discard(self.idle.pop(0))  # it was idle for longer, so it has probably vanished too
            if not self._reserve(opening):
                return deadline
        now = self._now()
        try:
            connection = await self._open(opening, now + (deadline - now) / 2)
        except HoldfastError:
            return deadline
        self.put(connection)
        return min(deadline, self._now() + _GRACE)

    def put(self, connection: C) -> None:
        """Keep the connection as idle if it is still open."""
        if self.is_closed or not connection.is_open:
            self.discard(connection)
            return
        self.idle.append(connection)
        self.after_put(connection)

    def after_put(self, connection: C) -> None:
        """Must be called after a connection was appended to `idle`."""
        if len(self.idle) > IDLE_KEPT:
            self.close_surplus(connection.used_at - IDLE_MAX)
        if self.is_closed:
            self.close()  # it may have run before the append
        elif self.waiters:
            self._wake_first()

    def put_after(self, connection: C, outcome: object) -> None:
        """Put the connection back, or discard it, after a request with this outcome: an exception or any result."""
        if isinstance(outcome, BackendError) and not connection.is_open:
            self.discard_failed(connection)
        elif isinstance(outcome, Exception) or not isinstance(outcome, BaseException):
            self.put(connection)
        else:
            self.discard(connection)  # an interrupt or a cancellation, perhaps in the middle of an answer

    def discard_failed(self, connection: C) -> None:
        """Discard a connection that got no answer, and all that were idle before its request: they may be gone too."""
        self.discard(connection)
        for other in list(self.idle):
            if other.used_at <= connection.used_at:
                try:
                    self.idle.remove(other)
                except ValueError:  # another thread has taken it
                    continue
                self.discard(other)

    def discard(self, connection: C) -> None:
        """Close the connection and stop counting it."""
        connection.close()
        self._counted.discard(connection)
        if self.waiters:
            self._wake_first()

    def close(self) -> None:
        """Close the idle connections. A request in flight can finish; its connection is closed afterwards."""
        self.is_closed = True
        while (connection := pop(self.idle)) is not None:
            self.discard(connection)

    def close_surplus(self, used_before: float = math.inf) -> None:
        """Close idle connections above IDLE_KEPT that were last used before this time: a burst has ended.

        The runtime calls this without a time when the client has held nothing for long.
        """
        while len(self.idle) > IDLE_KEPT:
            try:
                if self.idle[0].used_at >= used_before:
                    return
                self.discard(self.idle.pop(0))
            except IndexError:  # another thread has taken it
                return

    def abandon(self) -> None:
        """In a forked child: forget the connections. The code that opened them abandons each of them."""
        self.is_closed = True
        self.idle.clear()

    def _reserve(self, opening: _Opening) -> bool:
        """Count a connection that is to be opened. False if the limit is reached."""
        with self._mutex:
            if len(self._counted) >= self._max:
                return False
            self._counted.add(opening)
            return True


class _Opening:
    """Counts for a connection that is being opened."""

    __slots__ = ("__weakref__",)


class _Waiter:
    """A caller that waits for a connection."""

    __slots__ = ("__weakref__", "event", "ref")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.ref = weakref.ref(self)


def _first_alive(waiters: deque[weakref.ref[_Waiter]]) -> _Waiter | None:
    while waiters:
        waiter = waiters[0]()
        if waiter is not None:
            return waiter
        waiters.popleft()  # an interrupt ended it
    return None


class Abandonable(Connection, Protocol):
    """A connection that a forked child can drop without sending anything on it."""

    def abandon(self) -> None: ...


A = TypeVar("A", bound=Abandonable)


class ServerPools(ABC, Generic[A]):
    """The connections of one client to several servers: a pool for each of them, and those outside the pools."""

    def __init__(
        self, url: str, nodes: Iterable[Node], runtime: Runtime, connections_max: int, *, idle_check: float = 0.0
    ) -> None:
        self._url, self._runtime, self._now = url, runtime, runtime.now
        self._connections_max, self._idle_check = connections_max, idle_check
        self._pools = {node: self._new_pool(node) for node in nodes}
        self._connections: weakref.WeakSet[A] = weakref.WeakSet()  # all, those in use included

    @abstractmethod
    async def open(self, node: Node, until: float) -> A:
        """A new connection for the caller alone, noted in `_connections`.

        Raises:
            BackendUnavailable, ConfigurationError: this server cannot be reached or used.
        """

    def _new_pool(self, node: Node) -> ConnectionPool[A]:
        return ConnectionPool(
            self._url,
            partial(self.open, node),
            self._runtime,
            self._connections_max,
            server=str(node),
            idle_check=self._idle_check,
        )

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without sending anything on them."""
        for pool in self._pools.values():
            pool.abandon()
        for connection in list(self._connections):
            connection.abandon()


async def wait_ready(connection: Connection, poller: Poller, descriptor: int, events: int, deadline: float) -> bool:
    """Wait for the socket of this connection: True when it is ready, False when the time is up."""
    wanted, probe = [(descriptor, events)], connection.probe
    if probe is None:
        return bool(await poller.poll(wanted, deadline))
    now = system.now()
    if not await poller.poll(wanted, now + (deadline - now) / 2):
        deadline = await probe(deadline)
        if not await poller.poll(wanted, deadline):
            return False
    if events & READ:
        connection.probe = None  # it is alive
    return True


async def exchange_each(
    pools: Sequence[ConnectionPool[C]],
    send: Callable[[int, C], T | None],
    receive: Callable[[int, C], T],
    deadline: float,
) -> list[T | HoldfastError]:
    """Send a request on a connection of each pool, then read the replies: a silent server delays no other answer.

    `send` and `receive` get the number of the pool and block. If `send` returns an answer, nothing has to be received.
    """
    answers: dict[int, T | HoldfastError] = {}
    taken: list[tuple[int, C]] = []
    try:
        # Pools with an idle connection first, because connecting can take long.
        for number in sorted(range(len(pools)), key=lambda number: not pools[number].idle):
            pool, now = pools[number], system.now()
            try:
                # Half of the time, because a server that cannot be reached must leave time to read the other replies.
                connection = pool.get_idle(now) or await pool.open_or_wait(now + (deadline - now) / 2)
                taken.append((number, connection))
                answer = send(number, connection)
            except HoldfastError as error:
                answers[number] = error
            else:
                if answer is not None:
                    answers[number] = answer
        _receive_missing(taken, receive, answers)
    except BaseException:
        for number, connection in taken:
            pools[number].discard(connection)
        raise
    for number, connection in taken:
        pools[number].put_after(connection, answers[number])
    return [answers[number] for number in range(len(pools))]


def _receive_missing(
    taken: Sequence[tuple[int, C]], receive: Callable[[int, C], T], answers: dict[int, T | HoldfastError]
) -> None:
    """A function of its own: from Python 3.13 on, a handler around the loop would not cover its backward jumps."""
    for number, connection in taken:
        if number not in answers:
            try:
                answers[number] = receive(number, connection)
            except HoldfastError as error:
                answers[number] = error


def pop(idle: list[T]) -> T | None:
    """The last item, or None: one atomic step, so that other threads can do the same."""
    try:
        return idle.pop()
    except IndexError:
        return None
