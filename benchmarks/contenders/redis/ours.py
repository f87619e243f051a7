"""holdfast on Redis, through its public face."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager

import holdfast


class HoldfastRedis:
    """As in README.md: one client in the process, a lock by its name."""

    def __init__(self, url: str) -> None:
        self._client = holdfast.Client(url)

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return self._client.lock(name, ttl=ttl)

    def close(self) -> None:
        self._client.close()


class HoldfastRedisAsync:
    """The same, awaited."""

    def __init__(self, url: str) -> None:
        self._client = holdfast.AsyncClient(url)

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        return self._client.lock(name, ttl=ttl)

    async def close(self) -> None:
        await self._client.close()
