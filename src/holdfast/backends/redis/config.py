"""The configuration in a redis URL: servers, credentials, options. All of it is checked here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from holdfast.backends.net.pool import CONNECTIONS_MAX
from holdfast.backends.redis.protocol.keys import check_prefix
from holdfast.backends.url_parts import check_unix_sockets, max_connections
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

T = TypeVar("T")

PREFIX = "holdfast:"
METHODS = ("queue", "setnx", "getset")
COMPATS = ("python-redis-lock",)
CONNECT_TIMEOUT, IO_TIMEOUT, REPLICAS_TIMEOUT = 3.0, 5.0, 1.0  # seconds
_SECONDS_MAX = 3600.0
_PORT, _SENTINEL_PORT, _PORT_MAX = 6379, 26379, 65535
_ENCODE = "write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"


class Node(NamedTuple):
    """One server."""

    host: str  # or the path of a Unix socket
    port: int  # 0: the host is a path

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to a kind of server: arguments of redis-py's connections."""

    is_tls: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)  # credentials and certificates


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """One deployment of Redis, and how this client uses it."""

    url: str  # without a password
    shape: Literal["single", "sentinel", "cluster", "several"]
    nodes: tuple[Node, ...]  # the server, the Sentinels, or some servers of a Cluster
    login: Login = Login()
    db: int = 0
    service: str = ""  # the name of the primary in the Sentinels' configuration
    sentinel_login: Login = Login()
    # For the shape "several": login and database of each node.
    logins: Mapping[Node, tuple[Login, int]] = field(default_factory=dict, repr=False)

    prefix: str = PREFIX
    method: str = METHODS[0]
    compat: str | None = None
    evictions_allowed: bool = False
    replicas: int = 0  # number of replicas that must confirm a grant or renewal
    replicas_timeout: float = REPLICAS_TIMEOUT
    connect_timeout: float = CONNECT_TIMEOUT
    max_connections: int = CONNECTIONS_MAX
    io_timeout: float = IO_TIMEOUT
    client_name: str = ""

    def __post_init__(self) -> None:
        if self.compat is not None and self.shape == "cluster":
            raise ConfigurationError(
                f"url has compat={self.compat}, which does not work on a Cluster: its two keys are in different slots"
            )

    def login_of(self, node: Node) -> Login:
        """The login for this server."""
        return self.logins[node][0] if node in self.logins else self.login


class Adopted(NamedTuple):
    """The configuration taken from a client object of redis-py."""

    config: RedisConfig
    is_asyncio: bool


def config_of(address: Address, *, is_asyncio: bool) -> RedisConfig:
    """The configuration in an address.

    Raises:
        ConfigurationError: a part or an option is wrong; the message names it and the fix.
    """
    if isinstance(address.client, Adopted):
        if address.client.is_asyncio != is_asyncio:
            wanted = (
                "redis.asyncio's client objects" if is_asyncio else "the client objects of redis, not redis.asyncio"
            )
            raise ConfigurationError(f"{'AsyncClient' if is_asyncio else 'Client'} takes {wanted}, or a URL")
        return address.client.config
    options = address.options
    userinfo, at, hosts = address.host.rpartition("@")
    if not at and "@" in address.path:
        raise ConfigurationError(f"url has an @ behind its first /: {_ENCODE}")
    name, _, password = userinfo.partition(":")
    user, secret = unquote(name), unquote(password)
    settings = settings_of(options)
    if address.scheme == "redis+unix":
        return _unix(address, hosts, user or options.get("user", ""), secret or options.get("password", ""), settings)
    is_tls = address.scheme == "rediss" or choice(options, "tls", ("no", "yes")) == "yes"
    certificates = _certificates(options, is_tls=is_tls)
    login = Login(is_tls, _credentials(user, secret) | certificates)
    if address.scheme == "redis+sentinel":
        service, _, db = address.path.strip("/").partition("/")
        if not service:
            raise ConfigurationError("url has no service: redis+sentinel://host1,host2,host3/service/0")
        own = _credentials(options.get("sentinel_user", ""), options.get("sentinel_password", ""))
        return RedisConfig(
            url=address.redacted,
            shape="sentinel",
            nodes=_nodes(hosts, _SENTINEL_PORT),
            login=login,
            db=_db(db),
            service=service,
            sentinel_login=Login(is_tls, own | certificates),
            **settings,
        )
    if address.scheme == "redis+cluster":
        if address.path.strip("/") not in {"", "0"}:
            raise ConfigurationError(f"url names the database {address.path!r}, but a Cluster has none but 0")
        return RedisConfig(url=address.redacted, shape="cluster", nodes=_nodes(hosts, _PORT), login=login, **settings)
    nodes = _nodes(hosts or "localhost", _PORT)
    if len(nodes) > 1:
        raise ConfigurationError(
            f"url names {len(nodes)} servers, {address.scheme}:// takes one: use redis+cluster:// for a Cluster, "
            "redis+sentinel:// for Sentinels"
        )
    return RedisConfig(
        url=address.redacted, shape="single", nodes=nodes, login=login, db=_db(address.path.strip("/")), **settings
    )


def settings_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a RedisConfig that come from options."""
    replicas = _parsed(options, "replicas", int, 0, "a whole number, such as 1")
    if replicas < 0:
        raise ConfigurationError(f"url has replicas={replicas}: it must not be negative")
    method = choice(options, "method", METHODS)
    if replicas and method == "getset":
        raise ConfigurationError("url has replicas= and method=getset, which cannot wait for them: use another method")
    client_name = options.get("client_name", f"holdfast-{os.getpid()}")
    if not client_name.isascii() or not client_name.isprintable() or " " in client_name:
        raise ConfigurationError(f"url has client_name={client_name!r}: use ASCII letters, digits and signs, no spaces")
    return {
        "prefix": check_prefix(options.get("prefix", PREFIX)),
        "method": method,
        "compat": choice(options, "compat", COMPATS) if "compat" in options else None,
        "evictions_allowed": choice(options, "eviction", ("refuse", "allow")) == "allow",
        "replicas": replicas,
        "replicas_timeout": seconds(options, "replicas_timeout", REPLICAS_TIMEOUT),
        "connect_timeout": seconds(options, "connect_timeout", CONNECT_TIMEOUT),
        "max_connections": max_connections(options),
        "io_timeout": seconds(options, "io_timeout", IO_TIMEOUT),
        "client_name": client_name,
    }


def _unix(address: Address, hosts: str, user: str, password: str, settings: dict[str, Any]) -> RedisConfig:
    if hosts or not address.path.strip("/"):
        raise ConfigurationError("url must name the path of a socket: redis+unix:///run/redis/redis.sock?db=0")
    check_unix_sockets("redis+unix://")
    return RedisConfig(
        url=address.redacted,
        shape="single",
        nodes=(Node(address.path, 0),),
        login=Login(arguments=_credentials(user, password)),
        db=_db(address.options.get("db", "")),
        **settings,
    )


def _credentials(user: str, password: str) -> dict[str, str]:
    given = {"username": user, "password": password}
    return {name: value for name, value in given.items() if value}


def _certificates(options: Mapping[str, str], *, is_tls: bool) -> dict[str, Any]:
    files = {name: options[name] for name in ("ca_certs", "certfile", "keyfile") if name in options}
    if not is_tls:
        for name in (*files, *(("verify",) if "verify" in options else ())):
            raise ConfigurationError(f"url has {name}= but no TLS: use rediss://, or tls=yes (Sentinel, Cluster)")
        return {}
    for name, path in files.items():
        if not os.access(path, os.R_OK) or os.path.isdir(path):
            raise ConfigurationError(f"url has {name}={path!r}, which is not a file that this user may read")
    if "keyfile" in files and "certfile" not in files:
        raise ConfigurationError("url has keyfile= without certfile=: give both, or neither")
    is_verified = choice(options, "verify", ("required", "none")) == "required"
    return {
        # Set explicitly, because redis-py 5 does not check the host name in a certificate by default.
        "ssl_cert_reqs": "required" if is_verified else "none",
        "ssl_check_hostname": is_verified,
        **{f"ssl_{name}": path for name, path in files.items()},
    }


def _nodes(hosts: str, default_port: int) -> tuple[Node, ...]:
    nodes = tuple(_node(host, default_port) for host in hosts.split(","))
    if len(set(nodes)) < len(nodes):
        raise ConfigurationError("url names the same server twice: leave one out")
    return nodes


def _node(text: str, default_port: int) -> Node:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigurationError("url has an IPv6 address with a missing bracket: write [::1]:6379")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigurationError("url has an empty host name: write host:port, and commas only between them")
    if not port:
        return Node(unquote(host), default_port)
    # The text may be part of a password with an unencoded character, so the message does not show it.
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        raise ConfigurationError(f"url has a port that is no number from 1 to {_PORT_MAX}; also {_ENCODE}")
    return Node(unquote(host), int(port))


def _db(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError("url has a database that is no number: the path is /0, /1, …")
    return int(text)


def choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise ConfigurationError(f"url has {name}={value!r}: it must be {' or '.join(choices)}")
    return value


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    value = _parsed(options, name, float, default, "a number of seconds, such as 2.5")
    if not 0.0 < value <= _SECONDS_MAX:
        raise ConfigurationError(f"url has {name}={value:g}: it must be more than 0 and at most {_SECONDS_MAX:g}")
    return value


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: T, wanted: str) -> T:
    if name not in options:
        return default
    try:
        return parse(options[name])
    except ValueError:
        raise ConfigurationError(f"url has {name}={options[name]!r}: it must be {wanted}") from None
