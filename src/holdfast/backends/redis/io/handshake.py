"""Getting to know a server, on every new connection before anything else is said on it.

Behind the same address there may be another server tomorrow, or the same one with another setting. So each connection
asks, once: that costs one round trip when connecting and none later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.resp import ErrorReply, pack
from holdfast.backends.redis.protocol.server_info import ServerInfo, weakest
from holdfast.core.events import logger

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, RedisConfig
    from holdfast.backends.redis.io.connection import Connection
    from holdfast.backends.redis.port import Reply

_SECTIONS = ("server", "replication", "memory", "persistence")  # one INFO for each: 6.2 takes no more than one
_INFO = b"".join(pack("INFO", section) for section in _SECTIONS)
_APPENDFSYNC = pack("CONFIG", "GET", "appendfsync")
_ROLE = pack("ROLE")
_MAY_NOT_ASK = ("NOPERM", "unknown command")  # by an ACL, or by a provider who has taken the command away


class Handshake:
    """What the servers of one deployment have said of themselves."""

    def __init__(self, config: RedisConfig) -> None:
        self.server_info: ServerInfo | None = None
        self._config = config
        self._server_infos: dict[Node, ServerInfo] = {}
        self._warned = False

    async def run(self, connection: Connection, node: Node, deadline: float) -> None:
        """Say who we are, and hear who it is.

        Raises:
            ConfigurationError: it must not be used for locks as it is configured.
            BackendUnavailable: it lets us do nothing, or is no primary although Sentinels say so.
        """
        said = await connection.exchange_many(
            pack("CLIENT", "SETNAME", self._config.client_name) + _INFO, 1 + len(_SECTIONS), deadline
        )
        del said[0]  # what it thinks of our name does not matter
        refused = next((reply for reply in said if isinstance(reply, ErrorReply)), None)
        if refused is not None:
            if errors.code_of(refused) not in _MAY_NOT_ASK:
                raise errors.refusal(refused, self._config.url, node, "")
            self._warn(refused)
            await self._check_role(connection, node, deadline)
            return
        info = _facts(said)
        fsync: Reply = None
        if info.get("aof_enabled") == "1":
            fsync = (await connection.exchange_many(_APPENDFSYNC, 1, deadline))[0]
        server_info = ServerInfo.of(info, fsync[1].decode() if isinstance(fsync, list) and fsync else None)
        server_info.refuse_unfit(self._config.url, evictions_allowed=self._config.evictions_allowed)
        if self._config.shape == "sentinel" and server_info.is_primary is False:
            raise errors.not_sent(self._config.url, node, "Sentinels name it, but it is a replica; try again soon")
        if self._config.shape in {"single", "sentinel"}:  # there is one, and this is it now
            self._server_infos.clear()
        self._server_infos[node] = server_info
        self.server_info = weakest(self._server_infos.values())

    def server_info_of(self, node: Node) -> ServerInfo | None:
        """What this very server said when we connected to it last."""
        return self._server_infos.get(node)

    def forget(self, node: Node) -> None:
        """It is not part of the deployment any more."""
        if self._server_infos.pop(node, None) is not None and self._server_infos:
            self.server_info = weakest(self._server_infos.values())

    async def _check_role(self, connection: Connection, node: Node, deadline: float) -> None:
        if self._config.shape != "sentinel":
            return
        role = (await connection.exchange_many(_ROLE, 1, deadline))[0]
        if isinstance(role, list) and role[0] != b"master":
            raise errors.not_sent(self._config.url, node, "Sentinels name it, but it is a replica; try again soon")

    def _warn(self, refused: ErrorReply) -> None:
        if not self._warned:
            self._warned = True
            logger().warning(
                "%s: INFO is not allowed, so nobody checks that this server never drops locks: let this user run it "
                "(ACL SETUSER … +info), or see to `maxmemory-policy noeviction` yourself (%s)",
                self._config.url,
                refused,
            )


def _facts(sections: list[Reply]) -> dict[str, str]:
    lines = b"".join(sections).decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
