"""PostgreSQL for asyncio: a connection for each statement under way, hints heard by one task."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.postgresql import answers
from holdfast.backends.postgresql.address import Place, Server, place_of
from holdfast.backends.postgresql.database import Database
from holdfast.backends.postgresql.lines import READ, WRITE
from holdfast.backends.postgresql.methods import backend_on

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    port = LoopDatabase(place, LoopEyes(runtime), Tasks(runtime), runtime)
    return backend_on(place, port, runtime)


class LoopDatabase(Database):
    """Tasks begin in an order that people rely on. On connections of their own they would overtake each other.

    So those that enter the same lock do it one after the other, as they would inside the server anyway.
    """

    def __init__(self, place: Place, eyes: LoopEyes, background: Tasks, runtime: AsyncioRuntime) -> None:
        super().__init__(place, eyes, background, runtime)
        self._url, self._runtime = place.url, runtime
        self._turns: weakref.WeakValueDictionary[Value, asyncio.Lock] = weakref.WeakValueDictionary()

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if not statement.in_order:
            return await super().ask(statement, values, deadline=deadline)
        turn = self._turns.get(values[0])
        if turn is None:
            turn = self._turns[values[0]] = asyncio.Lock()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
                await turn.acquire()
        except TimeoutError as error:
            raise answers.not_connected(self._url, "other tasks were asking all the time") from error
        try:
            return await super().ask(statement, values, deadline=deadline)
        finally:
            turn.release()


class LoopEyes:
    """Has the loop wait."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime

    async def ready(self, wanted: Sequence[tuple[int, int]], until: float) -> list[int]:
        loop = self._runtime.loop
        seen: asyncio.Future[list[int]] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _tell, seen, [])
        try:
            for descriptor, events in wanted:
                if events & READ:
                    loop.add_reader(descriptor, _tell, seen, [descriptor])
                if events & WRITE:
                    loop.add_writer(descriptor, _tell, seen, [descriptor])
            return await seen
        finally:
            timer.cancel()
            for descriptor, _ in wanted:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)

    async def addresses(self, server: Server, deadline: float) -> list[str]:
        async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
            found = await self._runtime.loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]


class Tasks:
    """A task for the listener."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # In a context of its own: what the caller's context holds must not live as long as the client does.
        task = self._runtime.loop.create_task(work(), name="holdfast-listener", context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


def _tell(seen: asyncio.Future[list[int]], ready: list[int]) -> None:
    if not seen.done():
        seen.set_result(ready)
