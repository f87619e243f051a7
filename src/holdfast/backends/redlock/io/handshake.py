"""The handshake with a node: its run_id and start time, which decide whether its vote counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.errors import not_sent
from holdfast.backends.redis.io.handshake import Handshake
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.port import ServerRun

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.connection import Connection
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

_LOAD = b"".join(pack("SCRIPT", "LOAD", script.text) for script in lua.ALL)


class NodeHandshake(Handshake):
    """A handshake that also records the current run of each node."""

    def __init__(self, config: RedisConfig, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self.server_runs: list[ServerRun | None] = [None] * len(config.nodes)

    async def run(self, connection: Connection, node: Node, deadline: float) -> None:
        await super().run(connection, node, deadline)
        server_info = self._server_infos[node]
        if server_info.run_id is None or server_info.uptime is None:
            raise not_sent(
                self._config.url, node, "does not report its run_id: let this user run INFO (ACL SETUSER … +info)"
            )
        # Uptime is the difference of two clock readings in whole seconds, so the true one may be up to a second less.
        # The latest possible start counts.
        started_at = self._runtime.now() - max(0.0, server_info.uptime - 1.0)
        number = self._config.nodes.index(node)
        known = self.server_runs[number]
        if known is None or known.run_id != server_info.run_id:
            # Load the scripts now, node by node. Later all nodes get a request together, and a node that hangs would
            # use up the time that the others need for a second request with the text. Errors do not matter here.
            await connection.exchange_many(_LOAD, len(lua.ALL), deadline)
        self.server_runs[number] = ServerRun(
            server_info.run_id, started_at, may_forget=not server_info.keeps_every_write
        )
