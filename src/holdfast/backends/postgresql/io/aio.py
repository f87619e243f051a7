"""PostgreSQL for asyncio: a connection for each statement under way, hints heard by one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.aio import BackgroundTasks, KeyedMutex, LoopPoller
from holdfast.backends.postgresql.config import Place, place_of
from holdfast.backends.postgresql.io import errors
from holdfast.backends.postgresql.io.database import Database
from holdfast.backends.postgresql.protocol.methods import backend_on

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address)
    return backend_on(place, LoopDatabase(place, runtime), runtime)


class LoopDatabase(Database):
    """Whose tasks come to a lock in the order in which they began."""

    def __init__(self, place: Place, runtime: AsyncioRuntime) -> None:
        super().__init__(place, LoopPoller(runtime), BackgroundTasks(runtime), runtime)
        self._keyed_mutex = KeyedMutex(
            runtime, lambda: errors.not_connected(place.url, "other tasks were asking all the time")
        )

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if not statement.in_order:
            return await super().ask(statement, values, deadline=deadline)
        async with self._keyed_mutex.hold(values[0], deadline):
            return await super().ask(statement, values, deadline=deadline)
