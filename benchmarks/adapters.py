"""Contenders that are used in several arenas: holdfast and tooz."""

from __future__ import annotations

import uuid
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import holdfast
from benchmarks.contender import peer


class Holdfast:
    """One client per process, as in README.md."""

    def __init__(self, url: str) -> None:
        self._client = holdfast.Client(url)

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return self._client.lock(name, ttl=ttl)

    def close(self) -> None:
        self._client.close()


class HoldfastAsync:
    """The same for asyncio."""

    def __init__(self, url: str) -> None:
        self._client = holdfast.AsyncClient(url)

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return self._client.lock(name, ttl=ttl)

    async def close(self) -> None:
        await self._client.close()


class Tooz:
    """tooz, which has drivers for many stores: one coordinator per process."""

    def __init__(self, url: str) -> None:
        self._coordinator = peer("tooz.coordination").get_coordinator(url, uuid.uuid4().hex.encode())
        self._coordinator.start()

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = self._coordinator.get_lock(name.encode())
        return made

    def close(self) -> None:
        self._coordinator.stop()
