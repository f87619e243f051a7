"""Redlock for asyncio: all nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.io.aio import AsyncSubscriberIO
from holdfast.backends.redis.io.pipeline import PipelineConnections
from holdfast.backends.redlock.config import config_of
from holdfast.backends.redlock.io.handshake import NodeHandshake
from holdfast.backends.redlock.io.nodes import Nodes
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.io.connection import Batch
    from holdfast.backends.redis.port import Reply
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


class NodeConnections(PipelineConnections):
    """Without a task for each node, once we are connected to all of them: that would cost more than the exchange."""

    async def exchange_batches(
        self, batches: Sequence[Batch], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        pipelines = [self._shared.get(batch.node) for batch in batches if batch.count == 1]
        if alone or len(pipelines) < len(batches) or deadline <= self._runtime.now():
            return await super().exchange_batches(batches, deadline, alone=alone)
        usable = [one for one in pipelines if one is not None and one.is_usable(deadline)]
        if len(usable) < len(batches):
            return await super().exchange_batches(batches, deadline, alone=alone)
        futures = [one.submit(batch.request, deadline) for one, batch in zip(usable, batches, strict=True)]
        answers: list[list[Reply] | HoldfastError] = []
        try:
            for future in futures:
                try:
                    answers.append([await future])
                except HoldfastError as error:
                    answers.append(error)
        finally:
            for future in futures[len(answers) :]:  # cancelled: their replies are read all the same, by nobody
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return answers


def open_backend(address: Address, runtime: AsyncioRuntime) -> RedlockBackend:
    runtime.waits_for_sockets = True
    config = config_of(address, is_asyncio=True)
    redis, handshake = config.redis, NodeHandshake(config.redis, runtime)
    connections = NodeConnections(redis, redis.login, redis.db, runtime, handshake.run)
    port = Nodes(redis, connections, handshake, AsyncSubscriberIO(redis, runtime), runtime)
    return RedlockBackend(config, port, runtime)
