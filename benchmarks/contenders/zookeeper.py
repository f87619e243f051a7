"""Locks on one ZooKeeper server: holdfast beside kazoo's own Lock and tooz, and the bare calls that the recipe needs.

The reference is create + get_children + delete by kazoo's own client: the requests that every contender has to send.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Zookeeper


class _OneClient:
    """One client of kazoo in the process, as in any program."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._root = parts.path
        self._client = peer("kazoo.client").KazooClient(parts.netloc, timeout=30.0)
        self._client.start()

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class KazooLock(_OneClient):
    """kazoo.recipe.lock.Lock."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = self._client.Lock(f"{self._root}/{name}")
        return made


class BareCalls(_OneClient):
    """The requests of the recipe and nothing else: create, get_children, delete."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        path = f"{self._root}/{name}"
        self._client.ensure_path(path)
        return _Calls(self._client, path)


class _Calls:
    def __init__(self, client: Any, path: str) -> None:
        self._client, self._path, self._node = client, path, ""

    def __enter__(self) -> None:
        self._node = self._client.create(f"{self._path}/x-lock-", b"", ephemeral=True, sequence=True)
        if min(self._client.get_children(self._path)) != self._node.rpartition("/")[2]:
            raise RuntimeError("another client had the lock")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.delete(self._node)


_FAMILY: dict[str, Any] = {
    "arena": Arena.ZOOKEEPER,
    "server": Zookeeper(),
    "first_use": None,
    "only_in": ("uncontended", "contended", "waiters"),
}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "driver": "kazoo", "has_ttl": True, "has_fence": True}

CONTENDERS = [
    Contender(
        name="holdfast zookeeper",
        threads=Holdfast,
        imports="import holdfast",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast zookeeper asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="kazoo Lock",
        threads=KazooLock,
        package="kazoo",
        imports="import kazoo.client",
        waits="is woken",
        order="FIFO",
        baseline_of=("contended", "waiters"),
        **_FAMILY,
    ),
    Contender(
        name="tooz zookeeper",
        threads=lambda url: Tooz(f"kazoo://{urlsplit(url).netloc}"),  # whose lock is kazoo's
        package="tooz",
        driver="kazoo",
        imports="import tooz.coordination",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
    ),
    Contender(
        name="three kazoo calls",
        is_floor=True,
        threads=BareCalls,
        package="kazoo",
        imports="import kazoo.client",
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
]
