"""The configuration of a memcached client, parsed from its URL and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from holdfast.backends.memcached.protocol.keys import check_prefix
from holdfast.backends.net.passwords import password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.servers import ServersConfig
from holdfast.backends.net.tls import tls_context, tls_options
from holdfast.errors import ConfigurationError
from holdfast.url_parts import Option, login_and_hosts, nodes_of, seconds, values_of

if TYPE_CHECKING:
    from holdfast.url import Address

_PORT = 11211

_SETTINGS = (
    Option("prefix", "holdfast:", "the first part of every lock's key; visible ASCII, no `%`", parse=check_prefix),
    seconds("connect_timeout", "3", "seconds to connect to one server, handshake included"),
    seconds("io_timeout", "5", "seconds for one request, at most"),
    CONNECTIONS,
)
OPTIONS = (*_SETTINGS, *tls_options("memcacheds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemcachedConfig(ServersConfig):
    """The servers of a client, and how the client uses them.

    The nodes are sorted, so that clients which list the same servers in another order agree on them.
    """

    prefix: str
    io_timeout: float


def config_of(address: Address) -> MemcachedConfig:
    """The configuration in an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    user, password, hosts = login_and_hosts(address.host, address.path)
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but memcached has no databases: leave it out")
    given = password_of(address, password)
    if bool(user) != bool(given):
        raise ConfigurationError("url has a user without a password or a password without a user: memcached needs both")
    return MemcachedConfig(
        url=address.redacted,
        nodes=tuple(sorted(nodes_of(unquote(hosts).lower() or "localhost", _PORT))),
        user=user,
        password=given or "",
        tls=tls_context(address.options, is_on=address.scheme == "memcacheds"),
        **values_of(address.options, _SETTINGS),
    )
