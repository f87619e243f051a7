"""The redis-py client of the peers and the floors: one per process, as in any program."""

from __future__ import annotations

from benchmarks.contender import peer

TTL = 30  # seconds
CONNECTIONS_MAX = 4000  # of one process; redis-py's own limit is 100, fewer than there are threads that wait


class OneClient:
    """One redis-py client in the process, as in any program. All of its locks use it."""

    def __init__(self, url: str) -> None:
        self.redis = peer("redis").Redis.from_url(url, max_connections=CONNECTIONS_MAX)

    def close(self) -> None:
        self.redis.close()


class OneAsyncClient:
    """The same, awaited."""

    def __init__(self, url: str) -> None:
        self.redis = peer("redis.asyncio").Redis.from_url(url, max_connections=CONNECTIONS_MAX)

    async def close(self) -> None:
        await self.redis.aclose()
