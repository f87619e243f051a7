"""MySQL for asyncio: a connection for each statement under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.config import Place, place_of
from holdfast.backends.mysql.io import errors
from holdfast.backends.mysql.io.connections import Lines
from holdfast.backends.mysql.io.methods import backend_of
from holdfast.backends.net.aio import KeyedMutex, LoopPoller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    return backend_of(place, LoopLines(place, runtime), runtime)


class LoopLines(Lines):
    """Whose tasks come to a lock in the order in which they began."""

    def __init__(self, place: Place, runtime: AsyncioRuntime) -> None:
        super().__init__(place, LoopPoller(runtime), runtime)
        self._keyed_mutex = KeyedMutex(
            runtime, lambda: errors.not_connected(place.url, "other tasks were asking all the time")
        )

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if not statement.in_order:
            return await super().ask(statement, values, deadline=deadline)
        async with self._keyed_mutex.hold(values[0], deadline):
            return await super().ask(statement, values, deadline=deadline)
