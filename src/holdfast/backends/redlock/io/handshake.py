"""Which process each node is, and since when: what its vote is worth depends on that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.handshake import Acquaintance
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.port import Life

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, Place
    from holdfast.backends.redis.io.connection import Wire
    from holdfast.core.ports import Runtime

_LOAD = b"".join(pack("SCRIPT", "LOAD", script.text) for script in lua.ALL)


class Census(Acquaintance):
    """An Acquaintance that remembers the lives of the nodes."""

    def __init__(self, place: Place, runtime: Runtime) -> None:
        super().__init__(place)
        self._runtime = runtime
        self.lives: list[Life | None] = [None] * len(place.nodes)

    async def meet(self, wire: Wire, node: Node, deadline: float) -> None:
        await super().meet(wire, node, deadline)
        standing = self.standing_of(node)
        if standing is None or standing.run_id is None or standing.uptime is None:
            raise errors.not_sent(
                self._place.url, node, "does not say which process it is: let this user run INFO (ACL SETUSER … +info)"
            )
        # The difference of two clock readings in whole seconds: it may have been up for nearly one second less than it
        # says. What counts is when it was started at the latest.
        begun = self._runtime.now() - max(0.0, standing.uptime - 1.0)
        number = self._place.nodes.index(node)
        known = self.lives[number]
        if known is None or known.run != standing.run_id:
            # Now, one by one: later, they would be asked together, and one that hangs would use up the time that the
            # others need to be given the texts. Whether it wants them does not matter here.
            await wire.ask(_LOAD, len(lua.ALL), deadline)
        self.lives[number] = Life(standing.run_id, begun, forgets=not standing.keeps_every_write)
