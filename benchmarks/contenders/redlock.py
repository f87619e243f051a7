"""Locks that need a majority of five Redis nodes: holdfast, other Python libraries, and the two calls of a bare lock.

The baseline is holdfast on one node, measured in the same rounds: the difference is the cost of the quorum.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync
from benchmarks.contender import Arena, Contender, peer
from benchmarks.contenders.redis.clients import CONNECTIONS_MAX, TTL
from benchmarks.contenders.redis.floors import RELEASE
from benchmarks.servers import Redis, RedisNodes

# By default a node without persistence has no vote for `max_ttl` after its start, because it may have forgotten locks.
# The nodes of a benchmark are new, so they have no locks to forget.
_NO_QUARANTINE = "?quarantine=no"


class Pottery:
    """pottery.Redlock: a new pool of threads for each operation, one thread for each node."""

    def __init__(self, url: str) -> None:
        kind = peer("redis").Redis
        self._masters = {kind.from_url(node, max_connections=CONNECTIONS_MAX) for node in _nodes(url)}

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = peer("pottery").Redlock(key=name, masters=self._masters)
        return made

    def close(self) -> None:
        for client in self._masters:
            client.close()


class RedlockNg:
    """redlock.Redlock of redlock-ng: one node after the other."""

    def __init__(self, url: str) -> None:
        self._redlock = peer("redlock", apart=True).Redlock(_nodes(url))

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        # With blocking=False the body of the `with` statement would also run without the lock.
        made: AbstractContextManager[object] = self._redlock.lock(name, ttl=TTL * 1000, blocking=True)
        return made

    def close(self) -> None:
        for client in self._redlock.client.instances:
            client.close()


class RedlockNgAsync:
    """redlock.AsyncRedlock of redlock-ng: all nodes at once, with asyncio.gather."""

    def __init__(self, url: str) -> None:
        self._redlock = peer("redlock", apart=True).AsyncRedlock(_nodes(url))

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        made: AbstractAsyncContextManager[object] = self._redlock.lock(name, ttl=TTL * 1000, blocking=True)
        return made

    async def close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._redlock.client.instances))


class TwoConnectionCalls:
    """The least that such a lock needs: SET NX PX on all nodes at once, and a script that deletes our own value."""

    def __init__(self, url: str) -> None:
        kind = peer("redis").Connection
        self._nodes = [kind(host=node.hostname, port=node.port) for node in map(urlsplit, _nodes(url))]
        for node in self._nodes:
            node.connect()

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Calls(self._nodes, name)

    def close(self) -> None:
        for node in self._nodes:
            node.disconnect()


class _Calls:
    def __init__(self, nodes: list[Any], name: str) -> None:
        self._nodes, token = nodes, uuid.uuid4().hex
        self._set = ("SET", name, token, "NX", "PX", TTL * 1000)
        self._release = ("EVALSHA", self._request("SCRIPT", "LOAD", RELEASE)[0], 1, name, token)

    def __enter__(self) -> None:
        self._request(*self._set)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._request(*self._release)

    def _request(self, *words: object) -> list[Any]:
        for node in self._nodes:
            node.send_command(*words)
        replies = [node.read_response() for node in self._nodes]
        if not all(replies):
            raise RuntimeError("another client had the lock")
        return replies


def _nodes(url: str) -> list[str]:
    """A URL for each node."""
    return [f"redis://{node}/0" for node in urlsplit(url).netloc.split(",")]


_FAMILY: dict[str, Any] = {"arena": Arena.REDLOCK, "first_use": None, "only_in": ("uncontended",)}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "driver": "redis", "has_ttl": True, "has_fence": True}
_FIVE = RedisNodes(5)
_APART = "sys.path.insert(0, sys.prefix + '/apart')\nimport redlock"

CONTENDERS = [
    Contender(
        name="holdfast redlock",
        threads=lambda url: Holdfast(url + _NO_QUARANTINE),
        server=_FIVE,
        imports="import holdfast",
        waits="is woken",
        order="none",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast redlock asyncio",
        tasks=lambda url: HoldfastAsync(url + _NO_QUARANTINE),
        server=_FIVE,
        imports="import asyncio, holdfast",
        waits="is woken",
        order="none",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast redis, 1 node",
        is_floor=True,
        threads=Holdfast,
        server=Redis(),
        imports="import holdfast",
        waits="is woken",
        order="FIFO",
        baseline_of=("uncontended",),
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast redis asyncio, 1 node",
        is_floor=True,
        tasks=HoldfastAsync,
        server=Redis(),
        imports="import asyncio, holdfast",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="pottery, 5 nodes",
        threads=Pottery,
        server=_FIVE,
        package="pottery",
        imports="import pottery",
        waits="polls, 0–200 ms",
        **_FAMILY,
    ),
    Contender(
        name="redlock-ng",
        threads=RedlockNg,
        server=_FIVE,
        package="redlock-ng",
        driver="redis",
        imports=_APART,
        waits="polls, 100–300 ms",
        **_FAMILY,
    ),
    Contender(
        name="redlock-ng asyncio",
        tasks=RedlockNgAsync,
        server=_FIVE,
        package="redlock-ng",
        driver="redis",
        imports=f"import asyncio\n{_APART}",
        waits="polls, 100–300 ms",
        **_FAMILY,
    ),
    Contender(
        name="two Connection calls, 5 nodes",
        is_floor=True,
        threads=TwoConnectionCalls,
        server=_FIVE,
        package="redis",
        imports="import redis",
        waits=None,
        **_FAMILY,
    ),
]
