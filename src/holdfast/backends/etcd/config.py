"""An etcd URL, checked and parsed: members, login, TLS and options."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.servers import ServersConfig, servers_of
from holdfast.backends.net.tls import tls_options
from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import Option, choice, flag, seconds, values_of

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
class EtcdConfig(ServersConfig):
    """One cluster, and how to use it."""

    prefix: str
    raw_names: bool
    method: str


def config_of(address: Address) -> EtcdConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    servers = servers_of(address, _PORT, "etcds", "etcd has none: use prefix= for a part of it")
    if bool(servers["user"]) != bool(servers["password"]):
        raise ConfigurationError("url must have both a user and a password, etcd://user:password@host, or neither")
    config = EtcdConfig(**servers, **values_of(address.options, _SETTINGS))
    if config.tls is not None:
        config.tls.set_alpn_protocols(["http/1.1"])
    return config
