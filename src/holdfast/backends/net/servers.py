"""The part of a configuration that names servers: hosts, login and TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.net.passwords import Password, password_of
from holdfast.backends.net.tls import tls_context
from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import Node, login_and_hosts, nodes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersConfig:
    """The servers of a client, and how to connect to them."""

    url: str  # without a password
    nodes: tuple[Node, ...]
    user: str
    password: Password = field(repr=False)
    tls: ssl.SSLContext | None
    connect_timeout: float
    max_connections: int


def servers_of(address: Address, default_port: int, tls_scheme: str, no_path: str) -> dict[str, Any]:
    """The fields of a ServersConfig that are no options. `no_path` is the reason why the URL must not have a path.

    Raises:
        ConfigurationError: names the part that is wrong, and the fix.
    """
    user, password, hosts = login_and_hosts(address.host, address.path)
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but {no_path}")
    return {
        "url": address.redacted,
        "nodes": nodes_of(hosts or "localhost", default_port),
        "user": user,
        "password": password_of(address, password) or "",
        "tls": tls_context(address.options, is_on=address.scheme == tls_scheme),
    }
