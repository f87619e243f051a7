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
_FORBIDDEN = ("NOPERM", "unknown command", "ERR")  # by an ACL, or because the provider has removed the command
_SETTINGS = ("maxmemory-policy", "appendonly", "appendfsync")
_INSTEAD_OF_INFO = pack("HELLO") + pack("ROLE") + b"".join(pack("CONFIG", "GET", name) for name in _SETTINGS)


class Handshake:
    """The handshakes of one client, and their results."""

    def __init__(self, config: RedisConfig) -> None:
        self.server_info: ServerInfo | None = None
        self._config = config
        self._server_infos: dict[Node, ServerInfo] = {}  # at the last connect
        self._warned: set[str] = set()

    async def run(self, connection: Connection, node: Node, deadline: float) -> None:
        """Do the handshake on a new connection.

        Raises:
            ConfigurationError: the server's configuration is not safe for locks.
            BackendUnavailable: it refuses all commands, or it is a replica although the Sentinels named it.
        """
        # It does not matter whether it accepts the client name.
        _, *replies = await connection.exchange_many(
            pack("CLIENT", "SETNAME", self._config.client_name) + _INFO, 1 + len(_SECTIONS), deadline
        )
        refused = next((reply for reply in replies if isinstance(reply, ErrorReply)), None)
        if refused is None:
            info = _parse_info(replies)
            fsync = None
            if info.get("aof_enabled") == "1":
                fsync = _setting((await connection.exchange_many(_APPENDFSYNC, 1, deadline))[0])
            server_info = ServerInfo.of(info, fsync)
        elif errors.code_of(refused) in _FORBIDDEN:
            server_info = await _without_info(connection, deadline)
        else:
            raise errors.refusal(refused, self._config.url, node, "")
        server_info.refuse_unfit(self._config.url, evictions_allowed=self._config.evictions_allowed)
        if self._config.shape == "sentinel" and server_info.is_primary is False:
            raise not_sent(
                self._config.url, node, "the Sentinels name it as primary, but it is a replica; try again soon"
            )
        for warning in server_info.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                logger().warning("%s: %s", self._config.url, warning)
        if self._config.shape in {"single", "sentinel"}:  # there is one server, and this is it now
            self._server_infos.clear()
        self._server_infos[node] = server_info
        self.server_info = weakest(self._server_infos.values())

    def forget(self, node: Node) -> None:
        """The server is no longer part of the deployment."""
        if self._server_infos.pop(node, None) is not None and self._server_infos:
            self.server_info = weakest(self._server_infos.values())


async def _without_info(connection: Connection, deadline: float) -> ServerInfo:
    """The properties of a server that does not allow INFO, as far as other commands show them."""
    hello, role, *settings = await connection.exchange_many(_INSTEAD_OF_INFO, 2 + len(_SETTINGS), deadline)
    info: dict[str, str] = {}
    if isinstance(hello, list):
        facts = {key: value for key, value in zip(hello[::2], hello[1::2], strict=False) if isinstance(value, bytes)}
        product = "valkey" if facts.get(b"server") == b"valkey" else "redis"
        info[f"{product}_version"] = facts.get(b"version", b"").decode()
        info["role"] = facts.get(b"role", b"").decode()
    if isinstance(role, list):
        info["role"] = role[0].decode()
        if info["role"] == "master":
            info["connected_slaves"] = str(len(role[2]))
    policy, appendonly, fsync = map(_setting, settings)
    if policy is not None:
        info["maxmemory_policy"] = policy
    if appendonly is not None:
        info["aof_enabled"] = "1" if appendonly == "yes" else "0"
    return ServerInfo.of({name: value for name, value in info.items() if value}, fsync)


def _setting(reply: Reply) -> str | None:
    """The value in a reply to CONFIG GET; None: the server does not allow it."""
    return reply[1].decode() if isinstance(reply, list) and reply else None


def _parse_info(sections: list[Reply]) -> dict[str, str]:
    lines = b"".join(sections).decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
