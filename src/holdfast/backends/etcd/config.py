"""An etcd URL, checked and parsed: members, login, TLS and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.backends.net.passwords import password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.tls import tls_context, tls_options
from holdfast.errors import ConfigurationError
from holdfast.url_parts import Node, Option, choice, flag, login_and_hosts, nodes_of, seconds, values_of

if TYPE_CHECKING:
    import ssl

    from holdfast.backends.net.passwords import Password
    from holdfast.url import Address

_PORT = 2379

_SETTINGS = (
    Option("prefix", "holdfast/", "the prefix of all keys; clients exclude each other only within one prefix"),
    flag("raw_names", "no", "do not escape a `/` in a name, so that names match those of other programs"),
    choice("method", "queue", "`queue`: a queue in order; `key`: one key, without an order", ("queue", "key")),
    seconds("connect_timeout", "3", "seconds to connect to one member"),
    CONNECTIONS,
)
OPTIONS = (*_SETTINGS, *tls_options("etcds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """One cluster, and how to use it."""

    url: str  # without a password
    nodes: tuple[Node, ...]
    user: str
    password: Password = field(repr=False)
    tls: ssl.SSLContext | None
    prefix: str
    raw_names: bool
    method: str
    connect_timeout: float
    max_connections: int


def config_of(address: Address) -> EtcdConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    user, password, hosts = login_and_hosts(address.host, address.path)
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but etcd has none: use prefix= for a part of it")
    given = password_of(address, password)
    if bool(user) != bool(given):
        raise ConfigurationError("url must have both a user and a password, etcd://user:password@host, or neither")
    tls = tls_context(address.options, is_on=address.scheme == "etcds")
    if tls is not None:
        tls.set_alpn_protocols(["http/1.1"])
    return EtcdConfig(
        url=address.redacted,
        nodes=nodes_of(hosts or "localhost", _PORT),
        user=user,
        password=given or "",
        tls=tls,
        **values_of(address.options, _SETTINGS),
    )
