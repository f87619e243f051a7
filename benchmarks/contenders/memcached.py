"""Locks on one memcached: holdfast beside the Python libraries that have one, and beside two bare calls.

The bare calls are an add and a delete. They check no owner, cannot wait, and have no renewal and no fence.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender, peer
from benchmarks.servers import Memcached
from holdfast.backends.memcached.config import config_of
from holdfast.backends.memcached.io.blocking import SocketPort
from holdfast.backends.memcached.port import Batch
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.meta import Reply
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse

TTL = 30  # seconds
WAIT_MAX = 600  # seconds; longer than any case takes


class PortCalls:
    """On our own connection, below the protocol."""

    def __init__(self, url: str) -> None:
        config = config_of(parse(url))
        self._now = ThreadRuntime.now
        self._node, self._port = config.nodes[0], SocketPort(config, ThreadRuntime())

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _PortCalls(self._request, name)

    def close(self) -> None:
        run_sync(self._port.close())

    def _request(self, request: bytes) -> Reply:
        batch = Batch(self._node, (request,))
        return run_sync(self._port.request(batch, deadline=self._now() + 5.0)).replies[0]


class _PortCalls:
    def __init__(self, request: Callable[[bytes], Reply], name: str) -> None:
        self._request, self._key, self._version = request, name.encode(), 0
        self._add = meta.add(self._key, TTL, uuid.uuid4().hex.encode())

    def __enter__(self) -> None:
        reply = self._request(self._add)
        _check(reply.code == "HD")
        self._version = reply.version

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _check(self._request(meta.delete(self._key, self._version)).code == "HD")


class RawCalls:
    """On a socket, without a client library."""

    def __init__(self, url: str) -> None:
        self._address = (urlsplit(url).hostname, urlsplit(url).port)
        self._opened: list[socket.socket] = []

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        sock = socket.create_connection(self._address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened.append(sock)
        return _RawCalls(sock, name)

    def close(self) -> None:
        for sock in self._opened:
            sock.close()


class _RawCalls:
    def __init__(self, sock: socket.socket, name: str) -> None:
        self._sock = sock
        self._add = f"ms {name} 32 ME T{TTL} c\r\n{uuid.uuid4().hex}\r\n".encode()
        self._delete = f"md {name} C".encode()
        self._version = b""

    def __enter__(self) -> None:
        self._sock.sendall(self._add)
        reply = self._sock.recv(64)
        _check(reply[:4] == b"HD c")
        self._version = reply[4:]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.sendall(self._delete + self._version)
        _check(self._sock.recv(64) == b"HD\r\n")


class PymemcacheCalls:
    """Two calls of its Client."""

    def __init__(self, url: str) -> None:
        self._address = (urlsplit(url).hostname, urlsplit(url).port)
        self._opened: list[Any] = []

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        client = peer("pymemcache").Client(self._address, no_delay=True)
        self._opened.append(client)
        return _PymemcacheCalls(client, name)

    def close(self) -> None:
        for client in self._opened:
            client.close()


class _PymemcacheCalls:
    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._token = client, name, uuid.uuid4().hex

    def __enter__(self) -> None:
        _check(self._client.add(self._name, self._token, expire=TTL, noreply=False))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _check(self._client.delete(self._name, noreply=False))


class AiomcacheCalls:
    """Two calls of its Client."""

    def __init__(self, url: str) -> None:
        self._client = peer("aiomcache").Client(urlsplit(url).hostname, urlsplit(url).port, pool_size=100)

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return _AiomcacheCalls(self._client, name)

    async def close(self) -> None:
        await self._client.close()


class _AiomcacheCalls:
    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._token = client, name.encode(), uuid.uuid4().hex.encode()

    async def __aenter__(self) -> None:
        _check(await self._client.add(self._name, self._token, exptime=TTL))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _check(await self._client.delete(self._name))


class Sherlock:
    """sherlock.MCLock on pylibmc: add, and to release get, compare, delete; polls every 100 ms."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        client = peer("pylibmc").Client([self._address], binary=True)  # one each: threads must not share it
        made: AbstractContextManager[object] = peer("sherlock").MCLock(
            name, client=client, timeout=WAIT_MAX, expire=TTL
        )
        return made

    def close(self) -> None:
        pass


def _check(reply: object) -> None:
    if not reply:
        raise RuntimeError("another client had the lock")


_FAMILY: dict[str, Any] = {"arena": Arena.MEMCACHED, "server": Memcached()}
_OURS: dict[str, Any] = {
    "ours": True,
    "package": "holdfast",
    "waits": "polls, 2–100 ms",
    "has_ttl": True,
    "has_fence": True,
}

CONTENDERS = [
    Contender(
        name="holdfast memcached",
        threads=Holdfast,
        imports="import holdfast",
        first_use="client = holdfast.Client(sys.argv[1])\nwith client.lock('a'): pass\nclient.close()",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast memcached asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        first_use="""
async def main():
    async with holdfast.AsyncClient(sys.argv[1]) as client:
        async with client.lock('a'): pass
asyncio.run(main())
""",
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="sherlock memcached",
        threads=Sherlock,
        package="sherlock",
        driver="pylibmc",
        imports="import sherlock",
        first_use="""
import pylibmc
with sherlock.MCLock('a', client=pylibmc.Client([sys.argv[1].removeprefix('memcached://')], binary=True)): pass
""",
        waits="polls, 100 ms",
        baseline_of=("contended", "waiters"),
        **_FAMILY,
    ),
    Contender(
        name="tooz memcached",
        threads=Tooz,  # add; and to release get, compare, delete
        package="tooz",
        driver="pymemcache",
        imports="from tooz import coordination",
        first_use="""
coordinator = coordination.get_coordinator(sys.argv[1], b'me')
coordinator.start()
with coordinator.get_lock(b'a'): pass
coordinator.stop()
""",
        waits="polls, 1 s and more",
        **_FAMILY,
    ),
    Contender(
        name="two pymemcache calls",
        is_floor=True,
        threads=PymemcacheCalls,
        package="pymemcache",
        imports="import pymemcache",
        first_use=None,
        waits=None,
        **_FAMILY,
    ),
    Contender(
        name="two aiomcache calls",
        is_floor=True,
        tasks=AiomcacheCalls,
        package="aiomcache",
        imports="import asyncio, aiomcache",
        first_use=None,
        waits=None,
        baseline_of=("many",),
        **_FAMILY,
    ),
    Contender(
        name="two calls of our port",
        is_floor=True,
        threads=PortCalls,
        package="holdfast",
        imports="import holdfast",
        first_use=None,
        waits=None,
        **_FAMILY,
    ),
    Contender(
        name="two raw memcached calls",
        is_floor=True,
        threads=RawCalls,
        imports="import socket",
        first_use=None,
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
]
