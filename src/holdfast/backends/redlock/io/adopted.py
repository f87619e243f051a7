"""A list of redis-py's client objects in place of a URL: independent servers, of which a majority decides."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.redis.config import OPTIONS as REDIS_OPTIONS
from holdfast.backends.redis.config import Adopted
from holdfast.backends.redis.io.adopted import address_of as redis_address_of
from holdfast.backends.redlock.config import CONNECT_TIMEOUT
from holdfast.errors import ConfigurationError
from holdfast.url import Address, check_options

_NODE_OPTIONS = {option.name for option in REDIS_OPTIONS}
_TLS_OPTIONS = ("tls", "ca_certs", "certfile", "keyfile", "verify")


def address_of(clients: Sequence[object], options: dict[str, str]) -> Address:
    """The address of the servers of these client objects.

    Raises:
        ConfigurationError: one of them is not of a supported class, or not connected to a single server.
    """
    check_options("redlock", options)
    for name in _TLS_OPTIONS:
        if name in options:
            raise ConfigurationError(f"{name} is what the client objects themselves say: leave it out, or give URLs")
    node_options = {"connect_timeout": CONNECT_TIMEOUT} | {
        name: value for name, value in options.items() if name in _NODE_OPTIONS
    }
    adopted = []
    for client in clients:
        node = redis_address_of(client, node_options).client
        if not isinstance(node, Adopted) or node.config.shape != "single":
            raise ConfigurationError(
                "a list of client objects names the nodes of a quorum, and one of them is a Cluster or has Sentinels: "
                "give clients of single, independent servers"
            )
        adopted.append(node)
    servers = ",".join(node.config.url.partition("://")[2] for node in adopted)
    return Address("redlock", "", "", options, f"redlock://{servers}", tuple(adopted))
