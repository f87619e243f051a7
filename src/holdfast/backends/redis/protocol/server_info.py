"""What a server says of itself, and what its locks are worth because of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.guarantees import Exclusion, Guarantees

NEEDED = (6, 2)


class ServerInfo(NamedTuple):
    """From INFO, as far as we may ask for it. None: the server would not say."""

    product: str  # redis or valkey
    version: str | None
    run_id: str | None
    uptime: float | None  # seconds since it was started, rounded down
    is_primary: bool | None
    replicas: int | None
    policy: str | None  # maxmemory_policy
    keeps_every_write: bool  # append-only file, synced at every write

    @classmethod
    def of(cls, info: Mapping[str, str], appendfsync: str | None) -> ServerInfo:
        """From the lines of INFO, and the setting that it leaves out."""
        role, replicas = info.get("role"), info.get("connected_slaves")
        return cls(
            product="valkey" if "valkey_version" in info or info.get("server_name") == "valkey" else "redis",
            version=info.get("valkey_version") or info.get("redis_version"),
            run_id=info.get("run_id"),
            uptime=float(info["uptime_in_seconds"]) if "uptime_in_seconds" in info else None,
            is_primary=None if role is None else role == "master",
            replicas=None if replicas is None else int(replicas),
            policy=info.get("maxmemory_policy"),
            keeps_every_write=info.get("aof_enabled") == "1" and appendfsync == "always",
        )

    @property
    def may_evict(self) -> bool:
        """It may drop keys, locks among them, when memory runs short."""
        return self.policy not in {None, "noeviction"}

    @property
    def has_sharded_channels(self) -> bool:
        """SPUBLISH: what is said there goes to one part of a Cluster, not to all of it."""
        if self.version is None:
            return False
        return self.product == "valkey" or _numbers(self.version) >= (7,)

    def refuse_unfit(self, url: str, *, evictions_allowed: bool) -> None:
        """Raise ConfigurationError for a server that cannot keep locks, or would drop them, with the fix."""
        redis_version = self.version if self.product == "redis" else None
        if redis_version is not None and _numbers(redis_version) < NEEDED:
            needed = ".".join(map(str, NEEDED))
            raise ConfigurationError(
                f"{url}: Redis {redis_version} is too old for locks: use {needed} or newer, or Valkey"
            )
        if self.may_evict and not evictions_allowed:
            raise ConfigurationError(
                f"{url}: maxmemory-policy is {self.policy}, so the server may drop a lock that is held when memory "
                "runs short: set `maxmemory-policy noeviction`, use a server of its own for locks, or accept it with "
                "?eviction=allow"
            )


def weakest(server_infos: Collection[ServerInfo]) -> ServerInfo:
    """Of several servers that share the locks: what can be said of all of them."""
    first, *others = server_infos
    for other in others:
        first = first._replace(
            version=min(first.version or "", other.version or "", key=_numbers) or None,
            replicas=None if first.replicas is None or other.replicas is None else max(first.replicas, other.replicas),
            policy=other.policy if other.may_evict else first.policy,
            keeps_every_write=first.keeps_every_write and other.keeps_every_write,
        )
    return first


def guarantees_on(base: Guarantees, server_info: ServerInfo | None) -> Guarantees:
    """What a method promises on this very server; of one that was not asked yet, the least."""
    if server_info is None:
        return base
    if server_info.may_evict:
        return base._replace(exclusion=Exclusion.CACHE)
    if server_info.keeps_every_write and server_info.replicas == 0 and base.exclusion is Exclusion.BEST_EFFORT:
        return base._replace(exclusion=Exclusion.DURABLE_AUTHORITY)
    return base


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
