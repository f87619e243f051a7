"""MySQL for asyncio: a connection for each statement under way."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING

from holdfast.backends.mysql import answers
from holdfast.backends.mysql.address import Place, place_of
from holdfast.backends.mysql.lines import Lines
from holdfast.backends.mysql.login import log_in
from holdfast.backends.mysql.methods import backend_of
from holdfast.backends.mysql.wire import READ

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    return backend_of(place, LoopLines(place, LoopEyes(runtime), runtime), runtime)


class LoopLines(Lines):
    """Tasks begin in an order that people rely on. On connections of their own they would overtake each other.

    So those that enter the same lock do it one after the other, as they would inside the server anyway.
    """

    def __init__(self, place: Place, eyes: LoopEyes, runtime: AsyncioRuntime) -> None:
        super().__init__(place, eyes, runtime)
        self._turns: weakref.WeakValueDictionary[Value, asyncio.Lock] = weakref.WeakValueDictionary()

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if not statement.in_order:
            return await super().ask(statement, values, deadline=deadline)
        turn = self._turns.get(values[0])
        if turn is None:
            turn = self._turns[values[0]] = asyncio.Lock()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._now())):
                await turn.acquire()
        except TimeoutError as error:
            raise answers.not_connected(self._place.url, "other tasks were asking all the time") from error
        try:
            return await super().ask(statement, values, deadline=deadline)
        finally:
            turn.release()


class LoopEyes:
    """Has the loop wait."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self._runtime = runtime

    async def ready(self, descriptor: int, events: int, until: float) -> bool:
        loop = self._runtime.loop
        seen: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._runtime.now()), _tell, seen, False)  # noqa: FBT003
        add, remove = (loop.add_reader, loop.remove_reader) if events == READ else (loop.add_writer, loop.remove_writer)
        add(descriptor, _tell, seen, True)  # noqa: FBT003
        try:
            return await seen
        finally:
            timer.cancel()
            remove(descriptor)

    async def log_in(self, place: Place, deadline: float) -> socket.socket:
        # On a thread of the loop's: there is no more than a handful of connections, and they stay.
        loop = self._runtime.loop
        logging_in = loop.run_in_executor(None, log_in, place, deadline - self._runtime.now())
        try:
            async with asyncio.timeout(max(0.0, deadline - self._runtime.now())):
                return await asyncio.shield(logging_in)
        except BaseException as error:
            logging_in.add_done_callback(_close)  # nobody waits for it any more
            if isinstance(error, TimeoutError):
                raise answers.not_connected(place.url, "no answer in time") from error
            raise


def _close(logged_in: asyncio.Future[socket.socket]) -> None:
    with contextlib.suppress(BaseException):
        logged_in.result().close()


def _tell(seen: asyncio.Future[bool], answer: bool) -> None:  # noqa: FBT001
    if not seen.done():
        seen.set_result(answer)
