"""Which process each node is, and since when: what its vote is worth depends on that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.handshake import Handshake
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.port import ServerRun

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, RedisConfig
    from holdfast.backends.redis.io.connection import Connection
    from holdfast.core.ports import Runtime

_LOAD = b"".join(pack("SCRIPT", "LOAD", script.text) for script in lua.ALL)


class NodeHandshake(Handshake):
    """An Acquaintance that remembers the lives of the nodes."""

    def __init__(self, config: RedisConfig, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self.server_runs: list[ServerRun | None] = [None] * len(config.nodes)

    async def run(self, connection: Connection, node: Node, deadline: float) -> None:
        await super().run(connection, node, deadline)
        server_info = self.server_info_of(node)
        if server_info is None or server_info.run_id is None or server_info.uptime is None:
            raise errors.not_sent(
                self._config.url, node, "does not say which process it is: let this user run INFO (ACL SETUSER … +info)"
            )
        # The difference of two clock readings in whole seconds: it may have been up for nearly one second less than it
        # says. What counts is when it was started at the latest.
        started_at = self._runtime.now() - max(0.0, server_info.uptime - 1.0)
        number = self._config.nodes.index(node)
        known = self.server_runs[number]
        if known is None or known.run != server_info.run_id:
            # Now, one by one: later, they would be asked together, and one that hangs would use up the time that the
            # others need to be given the texts. Whether it wants them does not matter here.
            await connection.exchange_many(_LOAD, len(lua.ALL), deadline)
        self.server_runs[number] = ServerRun(
            server_info.run_id, started_at, may_forget=not server_info.keeps_every_write
        )
