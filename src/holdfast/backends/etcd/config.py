"""An etcd URL, checked and parsed: members, login, TLS and options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.backends.url_parts import max_connections, seconds
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    from holdfast.url import Address

PREFIX = "holdfast/"
METHODS = ("queue", "key")
CONNECT_TIMEOUT = 3.0  # seconds
_PORT, _PORT_MAX = 2379, 65535
_ENCODE = "write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"


class Node(NamedTuple):
    """One member."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """One cluster, and how to use it."""

    url: str  # without a password
    nodes: tuple[Node, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    prefix: str = PREFIX
    raw_names: bool = False
    method: str = METHODS[0]
    connect_timeout: float = CONNECT_TIMEOUT
    max_connections: int = CONNECTIONS_MAX


def config_of(address: Address) -> EtcdConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    options = address.options
    userinfo, at, hosts = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError(f"url has an @ behind its first /: {_ENCODE}")
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but etcd has none: use prefix= for a part of it")
    user, _, password = userinfo.partition(":")
    if bool(user) != bool(password):
        raise ConfigurationError("url must have both a user and a password, etcd://user:password@host, or neither")
    return EtcdConfig(
        url=address.redacted,
        nodes=_nodes(hosts or "localhost"),
        user=unquote(user),
        password=unquote(password),
        tls=_tls(options, is_on=address.scheme == "etcds"),
        prefix=options.get("prefix", PREFIX),
        raw_names=_choice(options, "raw_names", ("no", "yes")) == "yes",
        method=_choice(options, "method", METHODS),
        connect_timeout=seconds(options, "connect_timeout", CONNECT_TIMEOUT),
        max_connections=max_connections(options),
    )


def _nodes(hosts: str) -> tuple[Node, ...]:
    nodes = tuple(map(_node, hosts.split(",")))
    if len(set(nodes)) < len(nodes):
        raise ConfigurationError("url names the same server twice: leave one out")
    return nodes


def _node(text: str) -> Node:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigurationError("url has an IPv6 address with a missing bracket: write [::1]:2379")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if not host or not host.isprintable() or " " in host:
        raise ConfigurationError("url has an empty or odd host name: write host:port, and commas only between them")
    if not port:
        return Node(host, _PORT)
    # The text may be part of a password with an unencoded character, so the message does not show it.
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        raise ConfigurationError(f"url has a port that is no number from 1 to {_PORT_MAX}; also {_ENCODE}")
    return Node(host, int(port))


def _tls(options: Mapping[str, str], *, is_on: bool) -> ssl.SSLContext | None:
    given = [name for name in ("ca_certs", "certfile", "keyfile", "verify") if name in options]
    if not is_on:
        for name in given:
            raise ConfigurationError(f"url has {name}= but no TLS: use etcds://")
        return None
    import ssl

    for name in set(given) - {"verify"}:
        if not os.access(options[name], os.R_OK) or os.path.isdir(options[name]):
            raise ConfigurationError(f"url has {name}={options[name]!r}, which is not a file that this user may read")
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("url has keyfile= without certfile=: give both, or neither")
    try:
        context = ssl.create_default_context(cafile=options.get("ca_certs"))
        if _choice(options, "verify", ("required", "none")) == "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"))
    except ssl.SSLError as error:
        raise ConfigurationError(f"url has certificates that cannot be used: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if name == "raw_names":
        value = {"true": "yes", "false": "no"}.get(value, value)
    if value not in choices:
        raise ConfigurationError(f"url has {name}={value!r}: it must be {' or '.join(choices)}")
    return value
