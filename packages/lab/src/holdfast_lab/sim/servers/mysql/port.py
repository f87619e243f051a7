"""A MysqlPort whose statements travel through a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import Answer, Statement, Value
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.servers.mysql.server import MysqlServer

T = TypeVar("T")


class SimPort:
    """The connections of one client: several, so requests may overtake each other."""

    is_durable = True

    def __init__(self, server: MysqlServer, link: Link) -> None:
        self._server = server
        self.link = link

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        return await self.request(lambda: self._server.run(statement, values), deadline)

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        return await self.link.request_in_this_run(step, deadline)

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """The process has ended; the server sees its connections end."""
