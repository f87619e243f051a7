"""The handshake on every new connection: set the client name and read INFO.

The server behind an address can be replaced, or its settings can change. So every connection checks once, which costs
one round trip when connecting and none later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.errors import not_sent
from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.resp import ErrorReply, pack
from holdfast.backends.redis.protocol.server_info import ServerInfo, weakest
from holdfast.core.events import logger

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.connection import Connection
    from holdfast.backends.redis.port import Reply
    from holdfast.url_parts import Node

_SECTIONS = ("server", "replication", "memory", "persistence")  # one INFO for each: 6.2 takes no more than one
_INFO = b"".join(pack("INFO", section) for section in _SECTIONS)
_APPENDFSYNC = pack("CONFIG", "GET", "appendfsync")
_ROLE = pack("ROLE")
_FORBIDDEN = ("NOPERM", "unknown command")  # by an ACL, or because the provider has removed the command


class Handshake:
    """The handshakes of one client, and their results."""

    def __init__(self, config: RedisConfig) -> None:
        self.server_info: ServerInfo | None = None
        self._config = config
        self._server_infos: dict[Node, ServerInfo] = {}
        self._warned = False

    async def run(self, connection: Connection, node: Node, deadline: float) -> None:
        """Do the handshake on a new connection.

        Raises:
            ConfigurationError: the server's configuration is not safe for locks.
            BackendUnavailable: it refuses all commands, or it is a replica although the Sentinels named it.
        """
        replies = await connection.exchange_many(
            pack("CLIENT", "SETNAME", self._config.client_name) + _INFO, 1 + len(_SECTIONS), deadline
        )
        del replies[0]  # it does not matter whether it accepts the client name
        refused = next((reply for reply in replies if isinstance(reply, ErrorReply)), None)
        if refused is not None:
            if errors.code_of(refused) not in _FORBIDDEN:
                raise errors.refusal(refused, self._config.url, node, "")
            self._warn(refused)
            await self._check_role(connection, node, deadline)
            return
        info = _parse_info(replies)
        fsync: Reply = None
        if info.get("aof_enabled") == "1":
            fsync = (await connection.exchange_many(_APPENDFSYNC, 1, deadline))[0]
        server_info = ServerInfo.of(info, fsync[1].decode() if isinstance(fsync, list) and fsync else None)
        server_info.refuse_unfit(self._config.url, evictions_allowed=self._config.evictions_allowed)
        if self._config.shape == "sentinel" and server_info.is_primary is False:
            raise not_sent(
                self._config.url, node, "the Sentinels name it as primary, but it is a replica; try again soon"
            )
        if self._config.shape in {"single", "sentinel"}:  # there is one server, and this is it now
            self._server_infos.clear()
        self._server_infos[node] = server_info
        self.server_info = weakest(self._server_infos.values())

    def server_info_of(self, node: Node) -> ServerInfo | None:
        """INFO of one server at the last connect."""
        return self._server_infos.get(node)

    def forget(self, node: Node) -> None:
        """The server is no longer part of the deployment."""
        if self._server_infos.pop(node, None) is not None and self._server_infos:
            self.server_info = weakest(self._server_infos.values())

    async def _check_role(self, connection: Connection, node: Node, deadline: float) -> None:
        if self._config.shape != "sentinel":
            return
        role = (await connection.exchange_many(_ROLE, 1, deadline))[0]
        if isinstance(role, list) and role[0] != b"master":
            raise not_sent(
                self._config.url, node, "the Sentinels name it as primary, but it is a replica; try again soon"
            )

    def _warn(self, refused: ErrorReply) -> None:
        if not self._warned:
            self._warned = True
            logger().warning(
                "%s: INFO is not allowed, so it cannot be checked that this server never evicts locks: allow it "
                "(ACL SETUSER … +info), or make sure of `maxmemory-policy noeviction` (%s)",
                self._config.url,
                refused,
            )


def _parse_info(sections: list[Reply]) -> dict[str, str]:
    lines = b"".join(sections).decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
