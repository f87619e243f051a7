"""A NATS URL, checked and parsed: servers, login, TLS and options."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.backends.nats.protocol.keys import check_bucket
from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.servers import ServersConfig, servers_of
from holdfast.backends.net.tls import tls_options
from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import Option, choice, seconds, values_of

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
class NatsConfig(ServersConfig):
    """One server or cluster, and how to use it. Without a user, a password is a token."""

    bucket: str
    replicas: int  # 0: auto
    clock_skew: float


def config_of(address: Address) -> NatsConfig:
    """The configuration from an address.

    Raises:
        ConfigurationError: names the part or the option that is wrong, and the fix.
    """
    servers = servers_of(address, _PORT, "natss", "NATS has none: use bucket= for a part of it")
    if servers["user"] and not servers["password"]:
        raise ConfigurationError(
            "url has a user without a password: write nats://user:password@host, or nats://:token@host for a token"
        )
    return NatsConfig(**servers, **values_of(address.options, _SETTINGS))
