"""Redlock for threads: requests are sent to all nodes before the first reply is read, on the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.io.blocking import ThreadSubscriberIO
from holdfast.backends.redis.io.sockets import SocketConnection, SocketConnections
from holdfast.backends.redlock.config import config_of
from holdfast.backends.redlock.io.handshake import NodeHandshake
from holdfast.backends.redlock.io.nodes import Nodes
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.net.pool import ConnectionPool
    from holdfast.backends.redis.io.connection import Batch
    from holdfast.backends.redis.port import Reply
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address


class NodeConnections(SocketConnections):
    """A fast path for the case that every node has an idle connection."""

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        now = self._now()
        taken: list[tuple[ConnectionPool[SocketConnection], SocketConnection]] = []
        for batch in batches:
            pool = self._pool(batch.node)
            connection = pool.get_idle(now)
            if connection is None:
                for other, idle in taken:
                    other.put(idle)
                return await super().exchange_batches(batches, deadline, alone=alone)
            taken.append((pool, connection))
        results: list[list[Reply] | HoldfastError] = [[] for _ in batches]
        try:
            _exchange(batches, [connection for _, connection in taken], deadline, results)
        except BaseException:
            for pool, connection in taken:
                pool.discard(connection)
            raise
        for (pool, connection), answer in zip(taken, results, strict=True):
            pool.put_after(connection, answer)
        return results


def open_backend(address: Address, runtime: ThreadRuntime) -> RedlockBackend:
    config = config_of(address, is_asyncio=False)
    redis, handshake = config.redis, NodeHandshake(config.redis, runtime)
    connections = NodeConnections(redis, redis.login, redis.db, runtime, handshake.run)
    port = Nodes(redis, connections, handshake, ThreadSubscriberIO(redis, runtime), runtime)
    return RedlockBackend(config, port, runtime)


def _exchange(
    batches: Sequence[Batch],
    connections: Sequence[SocketConnection],
    deadline: float,
    results: list[list[Reply] | HoldfastError],
) -> None:
    for index, batch in enumerate(batches):
        try:
            connections[index].send(batch.request, deadline)
        except HoldfastError as error:
            results[index] = error
    # Read the last one first: when its reply has arrived, the others usually have too, so the thread sleeps once.
    for index in reversed(range(len(batches))):
        if results[index] == []:
            try:
                results[index] = connections[index].receive(batches[index].count, deadline)
            except HoldfastError as error:
                results[index] = error
