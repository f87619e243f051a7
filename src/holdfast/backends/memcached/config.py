"""The configuration of a memcached client, parsed from its URL and checked."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from holdfast.backends.memcached.protocol.keys import check_prefix
from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.backends.url_parts import PORT_MAX, choice, max_connections, seconds
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

PREFIX = "holdfast:"
CONNECT_TIMEOUT, IO_TIMEOUT = 3.0, 5.0  # seconds
_PORT = 11211
_ENCODE = "write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"


class Node(NamedTuple):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemcachedConfig:
    """The servers of a client, and how the client uses them."""

    url: str  # without a password
    nodes: tuple[Node, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    prefix: str = PREFIX
    connect_timeout: float = CONNECT_TIMEOUT
    max_connections: int = CONNECTIONS_MAX
    io_timeout: float = IO_TIMEOUT


def config_of(address: Address) -> MemcachedConfig:
    """The configuration in an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    userinfo, at, hosts = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError(f"url has an @ after its first /: {_ENCODE}")
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but memcached has no databases: leave it out")
    user, _, password = userinfo.partition(":")
    if userinfo and not (user and password):
        raise ConfigurationError("url has a user without a password or a password without a user: memcached needs both")
    options = address.options
    return MemcachedConfig(
        url=address.redacted,
        nodes=_nodes(hosts or "localhost"),
        user=unquote(user),
        password=unquote(password),
        tls=_tls(options) if address.scheme == "memcacheds" else None,
        prefix=check_prefix(options.get("prefix", PREFIX)),
        connect_timeout=seconds(options, "connect_timeout", CONNECT_TIMEOUT),
        max_connections=max_connections(options),
        io_timeout=seconds(options, "io_timeout", IO_TIMEOUT),
    )


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    verify = choice(options, "verify", ("required", "none"))
    for name in ("ca_certs", "certfile", "keyfile"):
        path = options.get(name)
        if path is not None and (not os.access(path, os.R_OK) or os.path.isdir(path)):
            raise ConfigurationError(f"url has {name}={path!r}, which is not a file that this user may read")
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("url has keyfile= without certfile=: give both, or neither")
    try:
        context = ssl.create_default_context(cafile=options.get("ca_certs"))
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"url has ca_certs=, certfile= or keyfile= that cannot be used: {error}") from error
    if verify == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _nodes(hosts: str) -> tuple[Node, ...]:
    """The servers, sorted, so that clients which list the same servers in another order agree on them."""
    nodes = [_node(text) for text in hosts.split(",")]
    if len(set(nodes)) < len(nodes):
        raise ConfigurationError("url names the same server twice: leave one out")
    return tuple(sorted(nodes))


def _node(text: str) -> Node:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigurationError("url has an IPv6 address with a missing bracket: write [::1]:11211")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigurationError("url has an empty host name: write host:port, and commas only between them")
    # The message does not quote the text, because it may be part of a password with an unencoded character.
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ConfigurationError(f"url has a port that is no number from 1 to {PORT_MAX}; also {_ENCODE}")
    return Node(unquote(host).lower(), int(port or _PORT))
