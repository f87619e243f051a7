"""The topologies of a deployment: one server, a primary with Sentinels, a Cluster. The same for threads and asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.io.handshake import Handshake
from holdfast.backends.redis.io.topology.base import Topology
from holdfast.backends.redis.io.topology.cluster import Cluster
from holdfast.backends.redis.io.topology.sentinel import Sentinel
from holdfast.backends.redis.io.topology.single import Single

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.redis.config import Login, RedisConfig
    from holdfast.backends.redis.io.connection import Connections, OnConnect
    from holdfast.backends.redis.io.subscriber import SubscriberIO
    from holdfast.core.ports import Runtime

__all__ = ["Topology", "topology_of"]


def topology_of(
    config: RedisConfig,
    subscriber_io: SubscriberIO,
    runtime: Runtime,
    connections_type: Callable[[RedisConfig, Login, int, Any, OnConnect | None], Connections],
) -> Topology:
    """The topology of this configuration. `connections_type` is for this kind of runtime."""
    handshake = Handshake(config)
    servers = connections_type(config, config.login, config.db, runtime, handshake.run)
    if config.shape == "sentinel":
        sentinels = connections_type(config, config.sentinel_login, 0, runtime, None)
        return Sentinel(config, servers, sentinels, handshake, subscriber_io, runtime)
    return (Cluster if config.shape == "cluster" else Single)(config, servers, handshake, subscriber_io, runtime)
