"""PostgreSQL for asyncio: a connection for each statement under way, hints heard by one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.aio import BackgroundTasks, KeyedMutex, LoopPoller
from holdfast.backends.postgresql.config import PostgresqlConfig, config_of
from holdfast.backends.postgresql.io import errors
from holdfast.backends.postgresql.io.database import Database
from holdfast.backends.postgresql.protocol.methods import make_backend

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return make_backend(config, LoopDatabase(config, runtime), runtime)


class LoopDatabase(Database):
    """Whose tasks come to a lock in the order in which they began."""

    def __init__(self, config: PostgresqlConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, LoopPoller(runtime), BackgroundTasks(runtime), runtime)
        self._keyed_mutex = KeyedMutex(
            runtime, lambda: errors.unavailable(config.url, "other tasks were asking all the time")
        )

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if not statement.in_order:
            return await super().execute(statement, values, deadline=deadline)
        async with self._keyed_mutex.hold(values[0], deadline):
            return await super().execute(statement, values, deadline=deadline)
