"""One server."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from holdfast.backends.redis.io.resp import ErrorReply, pack_around, pack_call
from holdfast.backends.redis.io.topology.base import Topology

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.connection import Connections
    from holdfast.backends.redis.io.handshake import Handshake
    from holdfast.backends.redis.io.subscriber import SubscriberIO
    from holdfast.backends.redis.port import Call, Reply
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node


class Single(Topology):
    """All keys are on one server."""

    def __init__(
        self,
        config: RedisConfig,
        servers: Connections,
        handshake: Handshake,
        subscriber_io: SubscriberIO,
        runtime: Runtime,
    ) -> None:
        super().__init__(config, servers, handshake, subscriber_io, runtime)
        self._node = config.nodes[0]
        self.exchange_now = functools.partial(servers.exchange_now, self._node)

    def prepare(self, call: Call) -> tuple[bytes, bytes] | None:
        # With replicas=, a grant counts only when these have confirmed it.
        return None if self._replicas else pack_around(call)

    def known_primary(self, slot: int) -> Node:
        return self._node

    async def find_primary(self, slot: int, deadline: float) -> Node:
        return self._node

    async def run(self, call: Call, *, deadline: float) -> Reply:
        # A shorter path than in the base class: the server is known, and every reply of it counts.
        if self._replicas:
            return await super().run(call, deadline=deadline)
        reply: Reply = self.exchange_now((pack_call(call), b""), "", self._runtime.now(), deadline)
        if reply.__class__ is not int:
            reply = await reply
        if reply.__class__ is ErrorReply:
            return await self._retry(self._request_of(call), self._node, reply, deadline)
        return reply
