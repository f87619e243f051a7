"""A PostgresqlPort whose statements travel through a simulated network, and whose notifications may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast_lab.sim.servers.subscriptions import SimSubscriber

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import Row, Statement, Value, WaiterSession
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer


class SimPort(SimSubscriber[str]):
    """The connections of one client: several, so requests may overtake each other, and one for notifications."""

    is_durable = True
    warnings: tuple[str, ...] = ()
    is_pooled = False  # it has no sessions of its own, and its backend does not subscribe

    def __init__(self, server: PostgresqlServer, link: Link, runtime: SimRuntime, number: int) -> None:
        super().__init__(server, link, runtime)
        self.channel = f"holdfast_{link.process.name}.{number}"
        self._server = server

    @property
    def subscriber(self) -> SimPort:
        return self

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self.request(lambda: self._server.run(self, statement, values), deadline)

    def channel_name(self, channel: str) -> str:
        return channel

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        raise NotImplementedError  # AdvisoryPort has sessions

    def return_waiter_session(self, session: WaiterSession) -> None:
        raise NotImplementedError  # likewise
