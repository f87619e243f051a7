"""PostgreSQL for asyncio: each statement uses one connection, notifications arrive in a background task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.net.aio import BackgroundTasks, KeyedMutex, LoopPoller
from holdfast.backends.postgresql.config import PostgresqlConfig, config_of
from holdfast.backends.postgresql.io.connections import Database, make_backend

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return make_backend(config, LoopDatabase(config, runtime), runtime)


class LoopDatabase(Database):
    """A database whose statements for the same lock are sent in the order in which tasks call."""

    def __init__(self, config: PostgresqlConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, LoopPoller(runtime), BackgroundTasks(runtime), runtime)
        self._keyed_mutex = KeyedMutex(runtime, config.url)

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if not statement.in_order:
            return await super().execute(statement, values, deadline=deadline)
        async with self._keyed_mutex.hold(values[0], deadline):
            return await super().execute(statement, values, deadline=deadline)
