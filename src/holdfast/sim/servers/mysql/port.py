"""A MysqlPort whose statements travel through a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast.sim.network import Link
    from holdfast.sim.servers.mysql.server import MysqlServer

T = TypeVar("T")


class SimPort:
    """The way of one client to the database: several connections, so no order is kept."""

    is_forgetful = False

    def __init__(self, server: MysqlServer, link: Link) -> None:
        self._server = server
        self.link = link

    async def ask(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        return await self.request(lambda: self._server.run(statement, values), deadline)

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        """Have it done, unless the server goes down while it is on its way: that ends its connection."""
        server, before = self._server, self._server.starts

        def arrived() -> T:
            if server.starts != before:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
            return step()

        return await self.link.request(arrived, deadline)

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """The process is gone; the server sees its connections end."""
