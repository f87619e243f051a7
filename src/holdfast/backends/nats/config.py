"""A NATS URL, checked and parsed: servers, login, TLS and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.backends.nats.protocol.keys import check_bucket
from holdfast.backends.net.passwords import password_of
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.tls import tls_context, tls_options
from holdfast.errors import ConfigurationError
from holdfast.url_parts import Node, Option, choice, login_and_hosts, nodes_of, seconds, values_of

if TYPE_CHECKING:
    import ssl

    from holdfast.backends.net.passwords import Password
    from holdfast.url import Address

_PORT = 4222

_SETTINGS = (
    Option(
        "bucket",
        "holdfast",
        "the key-value bucket; it is created if it does not exist; clients exclude each other only within one bucket",
        parse=check_bucket,
    ),
    choice(
        "replicas",
        "auto",
        "copies of a bucket that is created here, and the least number that is accepted; "
        "`auto`: 3 in a cluster, 1 on a single server, and any number is accepted",
        {"auto": 0, "1": 1, "3": 3, "5": 5},
    ),
    seconds(
        "clock_skew",
        "1",
        "seconds by which the clocks of the servers may differ: the server keeps a lease for so much longer",
    ),
    seconds("connect_timeout", "3", "seconds to connect to one server, handshake included"),
    CONNECTIONS,
)
OPTIONS = (*_SETTINGS, *tls_options("natss"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """One server or cluster, and how to use it."""

    url: str  # without a password
    nodes: tuple[Node, ...]
    user: str  # "" with a password: the password is a token
    password: Password = field(repr=False)
    tls: ssl.SSLContext | None
    bucket: str
    replicas: int  # 0: auto
    clock_skew: float
    connect_timeout: float
    max_connections: int


def config_of(address: Address) -> NatsConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    user, password, hosts = login_and_hosts(address.host, address.path)
    if address.path.strip("/"):
        raise ConfigurationError(f"url has the path {address.path!r}, but NATS has none: use bucket= for a part of it")
    given = password_of(address, password)
    if user and not given:
        raise ConfigurationError(
            "url has a user without a password: write nats://user:password@host, or nats://:token@host for a token"
        )
    return NatsConfig(
        url=address.redacted,
        nodes=nodes_of(hosts or "localhost", _PORT),
        user=user,
        password=given or "",
        tls=tls_context(address.options, is_on=address.scheme == "natss"),
        **values_of(address.options, _SETTINGS),
    )
