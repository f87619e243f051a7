"""The port: connections and the listener of one client, together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.io.connections import Connections
from holdfast.backends.postgresql.io.subscriber import Subscriber
from holdfast.backends.postgresql.io.waiter_sessions import WaiterSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.postgresql.config import PostgresqlConfig
    from holdfast.backends.postgresql.port import Row, Statement, Value, WaiterSession
    from holdfast.core.ports import Runtime


class Database:
    """One database, as port.py has it."""

    def __init__(self, config: PostgresqlConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        self._connections = Connections(config, poller, runtime)
        self._subscriber = Subscriber(config.url, self._connections, poller, background, runtime)
        self._sessions = WaiterSessions(self._connections, runtime)
        self.channel = self._connections.channel

    @property
    def is_durable(self) -> bool:
        return self._connections.is_durable

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._connections.warnings

    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self._connections.execute(statement, values, deadline)

    async def create_tables(self, *, deadline: float) -> None:
        await self._connections.create_tables(deadline)

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        return await self._sessions.open(deadline)

    def return_waiter_session(self, session: WaiterSession) -> None:
        self._sessions.return_waiter_session(session)

    def subscription(self, channel: str) -> int:
        return self._subscriber.subscription()

    async def subscribe(self, channel: str, nonce: str, *, deadline: float) -> None:
        await self._subscriber.subscribe(nonce, deadline)

    def unsubscribe(self, channel: str, nonce: str) -> None:
        self._subscriber.unsubscribe(nonce)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._subscriber.listen(wake, missed)

    async def close(self) -> None:
        await self._subscriber.close()
        self._sessions.close()
        self._connections.close()

    def abandon(self) -> None:
        self._subscriber.abandon()
        self._connections.abandon()
