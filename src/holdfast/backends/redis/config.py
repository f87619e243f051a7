"""The configuration in a redis URL: servers, credentials, options. All of it is checked here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast.backends.local_handover import LOCAL_HANDOVER
from holdfast.backends.net.passwords import Password, PasswordFunction, password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.tls import VERIFY, tls_files, tls_options
from holdfast.backends.redis.protocol.keys import check_prefix
from holdfast.errors import ConfigurationError
from holdfast.url_parts import (
    Node,
    Option,
    check_unix_sockets,
    choice,
    flag,
    integer,
    login_and_hosts,
    nodes_of,
    seconds,
    values_of,
)

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller
    from holdfast.url import Address

IO_TIMEOUT = 5.0  # seconds
_PORT, _SENTINEL_PORT = 6379, 26379


def _client_name(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError
    return text


PREFIX = Option("prefix", "holdfast:", "the text before the lock's name in its key", parse=check_prefix)
EVICTION = choice(
    "eviction",
    "refuse",
    "`allow`: accept a server that may evict keys when memory runs short",
    {"refuse": False, "allow": True},
)._replace(field="evictions_allowed")
CLIENT_NAME = Option(
    "client_name",
    None,
    "the name in `CLIENT LIST`; without it, `holdfast-` and the process id",
    "ASCII letters, digits and signs without spaces",
    _client_name,
)
TLS = flag("tls", "no", "TLS to all servers, Sentinels included")._replace(schemes=("redis+sentinel", "redis+cluster"))
_SETTINGS = (
    PREFIX,
    choice(
        "method",
        "queue",
        "`queue`: a queue in order; `setnx`: one key, with `SET NX`; `getset`: one key, for stores without scripts",
        ("queue", "setnx", "getset"),
    ),
    choice("compat", None, "`python-redis-lock`: use that library's keys and signals", ("python-redis-lock",)),
    EVICTION,
    integer("replicas", "0", "wait (`WAIT`) until this many replicas have confirmed a grant or renewal", minimum=0),
    seconds("replicas_timeout", "1", "seconds to wait for the replicas"),
    seconds("connect_timeout", "3", "seconds for a connection"),
    seconds("io_timeout", f"{IO_TIMEOUT:g}", "seconds for one request, at most"),
    CONNECTIONS,
    CLIENT_NAME,
    LOCAL_HANDOVER,
)
OPTIONS = (
    *_SETTINGS,
    Option("db", None, "the number of the database", schemes=("redis+unix",)),
    Option("user", None, "the user, if it is not before the path", schemes=("redis+unix",)),
    Option("password", None, "the password, if it is not before the path", schemes=("redis+unix",)),
    Option("sentinel_user", None, "the user for the Sentinels", schemes=("redis+sentinel",)),
    Option("sentinel_password", None, "the password for the Sentinels", schemes=("redis+sentinel",)),
    TLS,
    *tls_options("rediss", "redis+sentinel", "redis+cluster"),
)


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to a kind of server: arguments of redis-py's connections."""

    is_tls: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)  # credentials and certificates
    password: PasswordFunction | None = None  # its value is added to the arguments of each connection

    async def current(self, url: str, poller: Poller, until: float) -> Login:
        """This login with the present password. Raises as `PasswordFunction.ask` does."""
        if self.password is None:
            return self
        password = await self.password.ask(url, poller, until)
        return Login(self.is_tls, {**self.arguments, "password": password})


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

    prefix: str
    method: str
    compat: str | None
    evictions_allowed: bool
    replicas: int  # number of replicas that must confirm a grant or renewal
    replicas_timeout: float
    connect_timeout: float
    max_connections: int
    io_timeout: float
    client_name: str
    local_handover: bool

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
    user, password, hosts = login_and_hosts(address.host, address.path)
    settings = settings_of(options)
    if address.scheme == "redis+unix":
        given = password_of(address, password or options.get("password"))
        return _unix(address, hosts, _login(user or options.get("user"), given), settings)
    is_tls = address.scheme == "rediss" or TLS.value(options)
    certificates = _certificates(options, is_tls=is_tls)
    login = _login(user, password_of(address, password), certificates, is_tls=is_tls)
    if address.scheme == "redis+sentinel":
        service, _, db = address.path.strip("/").partition("/")
        if not service:
            raise ConfigurationError("url has no service: redis+sentinel://host1,host2,host3/service/0")
        own = password_of(address, options.get("sentinel_password"), "sentinel_password")
        return RedisConfig(
            url=address.redacted,
            shape="sentinel",
            nodes=nodes_of(hosts, _SENTINEL_PORT),
            login=login,
            db=_db(db),
            service=service,
            sentinel_login=_login(options.get("sentinel_user"), own, certificates, is_tls=is_tls),
            **settings,
        )
    if address.scheme == "redis+cluster":
        if address.path.strip("/") not in {"", "0"}:
            raise ConfigurationError(f"url names the database {address.path!r}, but a Cluster has none but 0")
        return RedisConfig(url=address.redacted, shape="cluster", nodes=nodes_of(hosts, _PORT), login=login, **settings)
    nodes = nodes_of(hosts or "localhost", _PORT)
    if len(nodes) > 1:
        raise ConfigurationError(
            f"url names {len(nodes)} servers, {address.scheme}:// takes one: use redis+cluster:// for a Cluster, "
            "redis+sentinel:// for Sentinels"
        )
    return RedisConfig(
        url=address.redacted, shape="single", nodes=nodes, login=login, db=_db(address.path.strip("/")), **settings
    )


def settings_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a RedisConfig that are options."""
    settings = values_of(options, _SETTINGS)
    if settings["replicas"] and settings["method"] == "getset":
        raise ConfigurationError("url has replicas= and method=getset, which cannot wait for them: use another method")
    if settings["client_name"] is None:
        settings["client_name"] = f"holdfast-{os.getpid()}"
    return settings


def _unix(address: Address, hosts: str, login: Login, settings: dict[str, Any]) -> RedisConfig:
    if hosts or not address.path.strip("/"):
        raise ConfigurationError("url must name the path of a socket: redis+unix:///run/redis/redis.sock?db=0")
    check_unix_sockets("redis+unix://")
    return RedisConfig(
        url=address.redacted,
        shape="single",
        nodes=(Node(address.path, 0),),
        login=login,
        db=_db(address.options.get("db", "")),
        **settings,
    )


def _login(
    user: str | None, password: Password | None, certificates: Mapping[str, Any] | None = None, *, is_tls: bool = False
) -> Login:
    arguments = dict(certificates or {})
    if user:
        arguments["username"] = user
    if password and isinstance(password, str):
        arguments["password"] = password
    return Login(is_tls, arguments, None if isinstance(password, str) else password)


def _certificates(options: Mapping[str, str], *, is_tls: bool) -> dict[str, Any]:
    files, is_verified = tls_files(options, is_on=is_tls), VERIFY.value(options)
    if not is_tls:
        return {}
    return {
        # Set explicitly, because redis-py 5 does not check the host name in a certificate by default.
        "ssl_cert_reqs": "required" if is_verified else "none",
        "ssl_check_hostname": is_verified,
        **{f"ssl_{name}": path for name, path in files.items()},
    }


def _db(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError("url has a database that is no number: the path is /0, /1, …")
    return int(text)
