"""Redis for threads: requests run on the caller's thread; one listener thread per server receives notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.redis.config import RedisConfig, config_of
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redis.io.sockets import SocketConnection, SocketConnections, connect
from holdfast.backends.redis.io.subscriber_connection import SocketSubscriberConnection
from holdfast.backends.redis.io.topology import Topology, topology_of
from holdfast.backends.redis.protocol.queue import backend_on
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: ThreadRuntime) -> Backend:
    config = config_of(address, is_asyncio=False)
    return backend_on(open_port(config, runtime), config, runtime)


def open_port(config: RedisConfig, runtime: ThreadRuntime) -> Topology:
    """One deployment, used by the threads of one client."""
    return topology_of(config, ThreadSubscriberIO(config, runtime), runtime, SocketConnections)


class ThreadSubscriberIO(BackgroundThreads):
    """Subscriber connections, and a daemon thread for each server with subscriptions."""

    def __init__(self, config: RedisConfig, runtime: ThreadRuntime) -> None:
        super().__init__()
        self._config, self._runtime = config, runtime
        self._open: list[SocketSubscriberConnection] = []

    async def open(self, node: Node, deadline: float) -> SocketSubscriberConnection:
        connection = SocketConnection(self._config, node, self._runtime)
        connection.attach(await connect(self._config, self._config.login_of(node), node, db=0, until=deadline))
        await connection.exchange_many(pack("CLIENT", "SETNAME", self._config.client_name), 1, deadline)
        self._open = [subscriber for subscriber in self._open if not subscriber.is_closed]
        sock = connection.detach()
        try:
            subscriber = SocketSubscriberConnection(sock, node, self._config, self._runtime)
        except BaseException:
            sock.close()
            raise
        self._open.append(subscriber)
        return subscriber

    def abandon(self) -> None:
        for connection in self._open:
            connection.abandon()
