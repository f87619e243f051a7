"""The shapes of a deployment: one server, a primary that Sentinels know, a Cluster. Written once, over wire.Lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io.topology.base import Topology
from holdfast.backends.redis.io.topology.cluster import Cluster
from holdfast.backends.redis.io.topology.sentinel import Sentinel
from holdfast.backends.redis.io.topology.single import Single

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.redis.config import Login, Place
    from holdfast.backends.redis.io.connection import Lines, Meet
    from holdfast.backends.redis.io.handshake import Acquaintance
    from holdfast.core.ports import Runtime

__all__ = ["Topology", "topology_of"]


def topology_of(
    place: Place, known: Acquaintance, runtime: Runtime, open_lines: Callable[[Login, int, Meet | None], Lines]
) -> Topology:
    """The one of this place. `open_lines` makes lines for a login and a database, with a greeting."""
    servers = open_lines(place.login, place.db, known.meet)
    if place.shape == "sentinel":
        return Sentinel(place, servers, open_lines(place.sentinel_login, 0, None), known, runtime)
    return (Cluster if place.shape == "cluster" else Single)(place, servers, known, runtime)
