"""Locks on one etcd: holdfast beside the Python libraries that have one, and the two bare calls of the recipe."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Etcd
from holdfast.backends.etcd.io.connection import Connection
from holdfast.backends.etcd.io.http import encode_request
from holdfast.backends.etcd.protocol.keys import range_end
from holdfast.backends.etcd.protocol.messages import absent, b64, encoded, first, get, put, txn
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url_parts import Node

TTL = 60  # seconds


class Etcd3gw:
    """etcd3gw.lock.Lock: the gateway too, through requests."""

    def __init__(self, url: str) -> None:
        endpoint = urlsplit(url)
        self._client = peer("etcd3gw").client(host=endpoint.hostname, port=endpoint.port)

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        # A new lock object for each pair: the client is shared, and the lock creates its lease at each acquire.
        made: AbstractContextManager[object] = self._client.lock(name, ttl=TTL)
        return made

    def close(self) -> None:
        self._client.session.close()


class Aetcd:
    """aetcd.Lock: gRPC, for asyncio."""

    def __init__(self, url: str) -> None:
        endpoint = urlsplit(url)
        self._client = peer("aetcd").Client(host=endpoint.hostname, port=endpoint.port)

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        made: AbstractAsyncContextManager[object] = self._client.lock(name.encode(), ttl=TTL)
        return made

    async def close(self) -> None:
        await self._client.close()


class TwoCalls:
    """The least that the recipe needs: put if absent, and read the first key; delete. On our own connection."""

    def __init__(self, url: str) -> None:
        endpoint = urlsplit(url)
        self._runtime = ThreadRuntime()
        self._connection = Connection(
            url, Node(endpoint.hostname or "", endpoint.port or 0), BlockingPoller(), self._runtime
        )
        run_sync(self._connection.connect(None, self._runtime.now() + 5))
        self._lease = int(self.exchange("lease/grant", {"TTL": str(TTL * 60)})["ID"])

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Calls(self, f"bare/{name}/".encode(), self._lease)

    def exchange(self, method: str, message: dict[str, Any]) -> Any:
        request = encode_request(self._connection.node, method, "", encoded(message))
        response, _ = run_sync(self._connection.exchange(request, self._runtime.now() + 5))
        return json.loads(response.body)

    def close(self) -> None:
        self._connection.close()


class _Calls:
    def __init__(self, calls: TwoCalls, folder: bytes, lease: int) -> None:
        self._calls = calls
        key = folder + b"%016x" % lease
        read_first = first(folder, range_end(folder))
        self._acquire = txn([absent(key)], [put(key, b"", lease), read_first], [get(key), read_first])
        self._release = {"key": b64(key)}

    def __enter__(self) -> None:
        if not self._calls.exchange("kv/txn", self._acquire).get("succeeded"):
            raise RuntimeError("another client had the lock")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.exchange("kv/deleterange", self._release)


_FAMILY: dict[str, Any] = {
    "arena": Arena.ETCD,
    "server": Etcd(),
    "first_use": None,
    "only_in": ("uncontended", "contended", "waiters"),
}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "has_ttl": True, "has_fence": True}

CONTENDERS = [
    Contender(
        name="holdfast etcd",
        threads=Holdfast,
        imports="import holdfast",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast etcd asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        waits="is woken",
        order="FIFO",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="etcd3gw",
        threads=Etcd3gw,
        package="etcd3gw",
        imports="import etcd3gw",
        waits=None,  # not blocking, its block is entered without the lock
        **_FAMILY,
    ),
    Contender(
        name="tooz etcd",
        threads=lambda url: Tooz(f"etcd3+http://{urlsplit(url).netloc}"),
        package="tooz",
        driver="etcd3gw",
        imports="from tooz import coordination",
        waits="polls",
        baseline_of=("contended", "waiters"),
        **_FAMILY,
    ),
    Contender(
        name="aetcd",
        tasks=Aetcd,
        package="aetcd",
        imports="import asyncio, aetcd",
        waits=None,  # after ten seconds its block is entered without the lock
        **_FAMILY,
    ),
    Contender(
        name="two etcd calls",
        is_floor=True,
        threads=TwoCalls,
        package="holdfast",
        imports="import holdfast",
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
]
