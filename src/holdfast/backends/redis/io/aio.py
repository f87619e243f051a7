"""Redis for asyncio: all tasks share one connection to each server; one task per server receives notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backends.net.aio import BackgroundTasks
from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.redis.config import RedisConfig, config_of
from holdfast.backends.redis.io.pipeline import DriverConnection, PipelineConnections
from holdfast.backends.redis.io.resp import Parser, pack
from holdfast.backends.redis.io.topology import Topology, topology_of
from holdfast.backends.redis.protocol.queue import backend_on
from holdfast.runtimes.aio import AsyncioEvent, AsyncioRuntime
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Reply
    from holdfast.core.ports import Backend
    from holdfast.core.tickets import Notification
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    config = config_of(address, is_asyncio=True)
    return backend_on(open_port(config, runtime), config, runtime)


def open_port(config: RedisConfig, runtime: AsyncioRuntime) -> Topology:
    """One deployment, used by the tasks of one loop."""
    runtime.waits_for_sockets = True
    return topology_of(config, AsyncSubscriberIO(config, runtime), runtime, PipelineConnections)


class AsyncSubscriberIO(BackgroundTasks):
    """Subscriber connections, and a task for each server with subscriptions."""

    def __init__(self, config: RedisConfig, runtime: AsyncioRuntime) -> None:
        super().__init__(runtime)
        self._config = config
        self._open: set[AsyncSubscriberConnection] = set()

    async def open(self, node: Node, deadline: float) -> AsyncSubscriberConnection:
        connection = AsyncSubscriberConnection(self._config, node, self._runtime)
        await connection.open(self._config.login_of(node), 0, deadline - self._runtime.now())
        self._open.add(connection)
        connection.ended.add_done_callback(lambda _: self._open.discard(connection))
        connection.send(pack("CLIENT", "SETNAME", self._config.client_name))
        try:
            if not await connection.receive(deadline):
                raise not_sent(self._config.url, node, "no answer in time")
        except BaseException:
            connection.close()
            raise
        return connection

    async def join(self) -> None:
        await super().join()
        if self._open:
            await asyncio.wait([connection.ended for connection in self._open])

    def abandon(self) -> None:
        for connection in self._open:
            connection.abandon()


class AsyncSubscriberConnection(DriverConnection, asyncio.Protocol):
    """One subscriber connection."""

    def __init__(self, config: RedisConfig, node: Node, runtime: AsyncioRuntime) -> None:
        super().__init__(config.url, node, runtime)
        self._parser = Parser()
        self._received: list[Reply] = []
        self._wakeup = AsyncioEvent()
        self._problem = ""

    def send(self, data: bytes) -> None:
        if self.is_open:
            self._transport.write(data)

    async def receive(self, until: float) -> list[Reply]:
        if not self._received and self.is_open:
            await self._wakeup.wait(until)
        self._wakeup.clear()
        if not self._received and not self.is_open:
            raise no_answer(self._url, self._node, f"{self._problem} while it was subscribed")
        received, self._received = self._received, []
        return received

    def event(self, notify: Callable[[Notification], None]) -> None:
        """No special event: the waiter and the reader are on the same loop."""

    def wake(self) -> None:
        self._wakeup.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._received.append(reply)
        except Exception as error:
            self.broken(f"its message cannot be parsed: {error!r}")
            self.close()
        self._wakeup.set()

    def broken(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._wakeup.set()
