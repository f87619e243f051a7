"""INFO of a server, and the guarantees that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.guarantees import Exclusion, Guarantees

NEEDED = (6, 2)


class ServerInfo(NamedTuple):
    """The fields of INFO that matter for locks. None: the server does not report it."""

    product: str  # redis or valkey
    version: str | None
    run_id: str | None
    uptime: float | None  # seconds since its start, rounded down
    is_primary: bool | None
    replicas: int | None
    policy: str | None  # maxmemory_policy
    keeps_every_write: bool | None  # append-only file with appendfsync always

    @classmethod
    def of(cls, info: Mapping[str, str], appendfsync: str | None) -> ServerInfo:
        """From INFO, and from appendfsync, which INFO does not contain."""
        role, replicas, aof = info.get("role"), info.get("connected_slaves"), info.get("aof_enabled")
        is_unknown = aof is None or (aof == "1" and appendfsync is None)
        return cls(
            product="valkey" if "valkey_version" in info or info.get("server_name") == "valkey" else "redis",
            version=info.get("valkey_version") or info.get("redis_version"),
            run_id=info.get("run_id"),
            uptime=float(info["uptime_in_seconds"]) if "uptime_in_seconds" in info else None,
            is_primary=None if role is None else role == "master",
            replicas=None if replicas is None else int(replicas),
            policy=info.get("maxmemory_policy"),
            keeps_every_write=None if is_unknown else aof == "1" and appendfsync == "always",
        )

    @property
    def may_evict(self) -> bool:
        """Whether it may evict keys, including locks, when memory runs short."""
        return self.policy not in {None, "noeviction"}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The properties that the server does not report, as a managed one may not, and the consequence."""
        warning = ""
        if self.policy is None:
            warning = (
                "the server does not report its maxmemory-policy, so it may evict a lock that is held when memory runs "
                "short, and exclusion counts as that of a cache: let this user run INFO (ACL SETUSER … +info)"
            )
        elif self.keeps_every_write is None and self.replicas == 0 and not self.may_evict:
            warning = (
                "the server does not report appendfsync (CONFIG GET is not allowed), so exclusion counts as best "
                "effort, even if every write is on disk before its reply"
            )
        return (warning,) if warning else ()

    @property
    def has_sharded_channels(self) -> bool:
        """Whether it has SPUBLISH, which sends a message to one shard of a Cluster and not to all servers."""
        if self.version is None:
            return False
        return self.product == "valkey" or _numbers(self.version) >= (7,)

    def refuse_unfit(self, url: str, *, evictions_allowed: bool) -> None:
        """Raise ConfigurationError, with the fix, for a server that is too old or may evict locks."""
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
    """The weakest properties of several servers that share the locks."""
    first, *others = server_infos
    for other in others:
        first = first._replace(
            version=min(first.version or "", other.version or "", key=_numbers) or None,
            replicas=None if first.replicas is None or other.replicas is None else max(first.replicas, other.replicas),
            policy=other.policy if other.may_evict or (other.policy is None and not first.may_evict) else first.policy,
            keeps_every_write=min(first.keeps_every_write, other.keeps_every_write, key=_CERTAINTY.index),
        )
    return first


def guarantees_on(base: Guarantees, server_info: ServerInfo | None) -> Guarantees:
    """The guarantees of a method on this server; before the first connection, the minimum."""
    if server_info is None:
        return base
    if server_info.may_evict or server_info.policy is None:  # an unknown policy counts as the worst case
        return base._replace(exclusion=Exclusion.CACHE)
    if server_info.keeps_every_write and server_info.replicas == 0 and base.exclusion is Exclusion.BEST_EFFORT:
        return base._replace(exclusion=Exclusion.DURABLE_AUTHORITY)
    return base


_CERTAINTY = (False, None, True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
