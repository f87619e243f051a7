"""The least that a lock on Redis needs: SET NX PX, and a script that deletes our own value.

No waiting, no fence, no renewal. Once through redis-py's client, and once on its Connection, below its command layer.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.contender import peer
from benchmarks.contenders.redis.clients import TTL, OneAsyncClient, OneClient

RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
end
return 0
"""


class TwoCalls(OneClient):
    """Two calls of a client."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Calls(self.redis, name)


class _Calls:
    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._token = client, name, uuid.uuid4().hex
        self._release = client.script_load(RELEASE)

    def __enter__(self) -> None:
        _check(self._client.set(self._name, self._token, nx=True, px=TTL * 1000))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _check(self._client.evalsha(self._release, 1, self._name, self._token))


class TwoCallsAsync(OneAsyncClient):
    """The same, awaited."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return _AsyncCalls(self.redis, name)


class _AsyncCalls:
    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._token = client, name, uuid.uuid4().hex
        self._release: str | None = None

    async def __aenter__(self) -> None:
        if self._release is None:
            self._release = await self._client.script_load(RELEASE)
        _check(await self._client.set(self._name, self._token, nx=True, px=TTL * 1000))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _check(await self._client.evalsha(self._release, 1, self._name, self._token))


class TwoConnectionCalls:
    """The same two calls. Each lock has a Connection of its own."""

    def __init__(self, url: str) -> None:
        self._address = {"host": urlsplit(url).hostname, "port": urlsplit(url).port}
        self._opened: list[Any] = []

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        connection = peer("redis").Connection(**self._address)
        connection.connect()
        self._opened.append(connection)
        return _ConnectionCalls(connection, name)

    def close(self) -> None:
        for connection in self._opened:
            connection.disconnect()


class _ConnectionCalls:
    def __init__(self, connection: Any, name: str) -> None:
        self._send, self._read = connection.send_command, connection.read_response
        self._send("SCRIPT", "LOAD", RELEASE)
        token = uuid.uuid4().hex
        self._set = ("SET", name, token, "NX", "PX", TTL * 1000)
        self._release = ("EVALSHA", self._read(), 1, name, token)

    def __enter__(self) -> None:
        self._send(*self._set)
        _check(self._read())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(*self._release)
        _check(self._read())


class TwoConnectionCallsAsync:
    """The same, awaited."""

    def __init__(self, url: str) -> None:
        self._address = {"host": urlsplit(url).hostname, "port": urlsplit(url).port}
        self._opened: list[Any] = []

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        connection = peer("redis.asyncio").Connection(**self._address)
        self._opened.append(connection)
        return _AsyncConnectionCalls(connection, name)

    async def close(self) -> None:
        await asyncio.gather(*(connection.disconnect() for connection in self._opened))


class _AsyncConnectionCalls:
    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._send, self._read = connection.send_command, connection.read_response
        token = uuid.uuid4().hex
        self._set = ("SET", name, token, "NX", "PX", TTL * 1000)
        self._release: tuple[Any, ...] = (1, name, token)

    async def __aenter__(self) -> None:
        if not self._connection.is_connected:
            await self._connection.connect()
            await self._send("SCRIPT", "LOAD", RELEASE)
            self._release = ("EVALSHA", await self._read(), *self._release)
        await self._send(*self._set)
        _check(await self._read())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._send(*self._release)
        _check(await self._read())


def _check(reply: object) -> None:
    if not reply:
        raise RuntimeError("another client had the lock")
