"""MySQL for asyncio: each statement uses one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.mysql.config import MysqlConfig, config_of
from holdfast.backends.mysql.io.connections import Connections, make_backend
from holdfast.backends.net.aio import KeyedMutex, LoopPoller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address)
    return make_backend(config, LoopConnections(config, runtime), runtime)


class LoopConnections(Connections):
    """Connections whose statements for the same lock are sent in the order in which tasks call."""

    def __init__(self, config: MysqlConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(config, LoopPoller(runtime), runtime)
        self._keyed_mutex = KeyedMutex(runtime, config.url)

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if not statement.in_order:
            return await super().execute(statement, values, deadline=deadline)
        async with self._keyed_mutex.hold(values[0], deadline):
            return await super().execute(statement, values, deadline=deadline)
