"""The council of a simulated world: what its URL would say."""

from __future__ import annotations

from dataclasses import replace

from holdfast.backends.redlock.config import RedlockConfig, config_of
from holdfast.sim.servers.redis.port import PREFIX
from holdfast.url import Address


def config_for(nodes: int, *, max_ttl: float, quarantine: bool = True) -> RedlockConfig:
    """So many nodes, each with a name."""
    hosts = ",".join(f"node-{number}" for number in range(nodes))
    address = Address("redlock", hosts, "", {"prefix": PREFIX}, "sim://redlock")
    return replace(config_of(address, is_asyncio=False), max_ttl=max_ttl, quarantine=quarantine)
