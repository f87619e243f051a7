"""The port: the connections, the subscriber and the waiter sessions of one client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.postgresql.io.connections import Connections
from holdfast.backends.postgresql.io.subscriber import Subscriber
from holdfast.backends.postgresql.io.waiter_sessions import WaiterSessions
from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.polled import PolledBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.postgresql.config import PostgresqlConfig
    from holdfast.backends.postgresql.port import PostgresqlPort, WaiterSession
    from holdfast.core.ports import Backend, Runtime


def make_backend(config: PostgresqlConfig, port: PostgresqlPort, runtime: Runtime) -> Backend:
    if config.method == "advisory":
        return AdvisoryBackend(config.url, port, runtime, schema=config.schema)
    if config.is_pooled and config.listen is None:
        return PolledBackend(config.url, port, runtime, local_handover=config.local_handover)
    return PostgresqlBackend(config.url, port, runtime, local_handover=config.local_handover)


class Database(Connections):
    """The implementation of PostgresqlPort."""

    def __init__(self, config: PostgresqlConfig, poller: Poller, background: Background, runtime: Runtime) -> None:
        super().__init__(config, poller, runtime)
        self._listening = None if config.listen is None else Connections(config.listen, poller, runtime, self.channel)
        self.subscriber = Subscriber(config.url, self, poller, background, runtime, listening=self._listening)
        self._sessions = WaiterSessions(self)

    async def open_waiter_session(self, *, deadline: float) -> WaiterSession:
        return await self._sessions.open(deadline)

    def return_waiter_session(self, session: WaiterSession) -> None:
        self._sessions.put(session)

    async def close(self) -> None:
        await self.subscriber.close()
        self._sessions.close()
        if self._listening is not None:
            await self._listening.close()
        await super().close()

    def abandon(self) -> None:
        self.subscriber.abandon()
        if self._listening is not None:
            self._listening.abandon()
        super().abandon()
