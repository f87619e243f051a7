"""The configuration in a redlock URL: nodes and options. All of it is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.backends.net.pool import CONNECTIONS
from holdfast.backends.net.tls import tls_options
from holdfast.backends.redis.config import CLIENT_NAME, EVICTION, PREFIX, TLS, Login, RedisConfig
from holdfast.backends.redis.config import config_of as redis_config_of
from holdfast.core.events import logger
from holdfast.errors import ConfigurationError
from holdfast.url import Address
from holdfast.url_parts import Node, choice, flag, seconds, values_of

NODES_MIN = 3
CONNECT_TIMEOUT = "1"

_NODES = choice("nodes", "three", "`any`: allow one or two nodes", ("three", "any"))
_SETTINGS = (
    seconds(
        "max_ttl",
        "60",
        "the longest ttl (with the lock delay), and the seconds for which a restarted node that may have lost data "
        "does not count; it must be the same in all programs",
    ),
    seconds("node_timeout", "0.5", "seconds for the reply of one node, and never more than a quarter of the ttl"),
    flag("quarantine", "yes", "`no`: nodes count as soon as they are up; then two clients may hold a lock"),
)
OPTIONS = (
    PREFIX,
    _NODES,
    *_SETTINGS,
    EVICTION,
    seconds("connect_timeout", CONNECT_TIMEOUT, "seconds for a connection to one node; use more for distant nodes"),
    CONNECTIONS,
    CLIENT_NAME,
    TLS._replace(meaning="TLS for all nodes", schemes=()),
    *tls_options(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedlockConfig:
    """The nodes, and how this client uses them."""

    redis: RedisConfig  # all nodes together, for their connections
    max_ttl: float  # the longest ttl; a restarted node that may have lost data does not count for this long
    node_timeout: float  # time limit for the reply of one node
    quarantine: bool


def config_of(address: Address, *, is_asyncio: bool) -> RedlockConfig:
    """The configuration in an address.

    Raises:
        ConfigurationError: there are too few nodes, or a part is wrong; the message names it and the fix.
    """
    options = {"connect_timeout": CONNECT_TIMEOUT, **address.options}
    if isinstance(address.client, tuple):  # client objects of redis-py, one for each node
        addresses = [address._replace(client=client) for client in address.client]
    else:
        addresses = [
            address._replace(scheme="redis", host=host, path=db, options=options) for host, db in _split(address)
        ]
    configs = [redis_config_of(node_address, is_asyncio=is_asyncio) for node_address in addresses]
    nodes = tuple(config.nodes[0] for config in configs)
    _check_number(nodes, may_be_few=_NODES.value(options) == "any", url=address.redacted)
    logins: Mapping[Node, tuple[Login, int]] = {config.nodes[0]: (config.login, config.db) for config in configs}
    return RedlockConfig(
        redis=replace(configs[0], url=address.redacted, shape="several", nodes=nodes, logins=logins),
        **values_of(options, _SETTINGS),
    )


def _split(address: Address) -> list[tuple[str, str]]:
    """The nodes in order, each as host (with credentials and port) and path (the database)."""
    pieces = (address.host + address.path).split(",")
    if "" in pieces:
        raise ConfigurationError("url has an empty host name: redlock://host1:6379,host2:6379,host3:6379")
    return [(host, f"{slash}{db}") for host, slash, db in (piece.partition("/") for piece in pieces)]


def _check_number(nodes: tuple[Node, ...], *, may_be_few: bool, url: str) -> None:
    if len(set(nodes)) < len(nodes):
        raise ConfigurationError("url names the same server twice: each node must be a server of its own")
    if len(nodes) < NODES_MIN and not may_be_few:
        raise ConfigurationError(
            f"url names {len(nodes)} nodes: with fewer than {NODES_MIN} none may fail, and a plain redis:// does the "
            "same for less; add nodes, or insist with nodes=any"
        )
    if len(nodes) % 2 == 0:
        logger().warning("%s has %d nodes: one node less survives as many failures; use an odd number", url, len(nodes))
