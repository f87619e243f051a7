"""One server, always the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io.connection import NOT_AT_ONCE
from holdfast.backends.redis.io.resp import ErrorReply, pack_call
from holdfast.backends.redis.io.topology.base import Topology

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, Place
    from holdfast.backends.redis.io.connection import Lines
    from holdfast.backends.redis.io.handshake import Acquaintance
    from holdfast.backends.redis.port import Call, Reply
    from holdfast.backends.redis.protocol.keys import Keys
    from holdfast.core.ports import Runtime


class Single(Topology):
    """Everything is there, or nowhere."""

    def __init__(self, place: Place, servers: Lines, known: Acquaintance, runtime: Runtime) -> None:
        super().__init__(place, servers, known, runtime)
        self._node = place.nodes[0]

    def at_hand(self, slot: int) -> Node:
        return self._node

    def trusts_message(self, keys: Keys, since: float) -> bool:
        return True

    async def find(self, slot: int, deadline: float) -> Node:
        return self._node

    async def reconsider(self, slot: int, node: Node, deadline: float) -> Node:
        return node

    async def run(self, call: Call, *, deadline: float) -> Reply:
        # As in the base, but for what cannot be here: nothing to find out, nobody else to ask, no answer to doubt.
        if self._replicas:
            return await super().run(call, deadline=deadline)
        request = pack_call(call)
        reply = self._lines.at_once(self._node, request, deadline)
        if reply is NOT_AT_ONCE:
            reply = await self._lines.one(self._node, request, deadline)
        if reply.__class__ is ErrorReply:
            return await self._insist(self._errand(call), self._node, reply, deadline)
        return reply
