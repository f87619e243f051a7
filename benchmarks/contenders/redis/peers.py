"""The Python libraries that have a lock on one Redis server.

Each is used as its documentation shows (`with lock:`), with its default options and its default poll interval. Limits
for waiting and for connections are set so high that no case reaches them. A lock that would never expire if its holder
died gets an expiry of TTL, as the others have by default; it costs nothing.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager

from benchmarks.contender import peer
from benchmarks.contenders.redis.clients import TTL, OneAsyncClient, OneClient

WAIT_MAX = 600  # seconds; longer than any case takes


class RedisPyLock(OneClient):
    """redis.Redis.lock: SET NX and a script to release; polls every 100 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = self.redis.lock(name, timeout=TTL)
        return made


class RedisPyLockAsync(OneAsyncClient):
    """The same, awaited."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        made: AbstractAsyncContextManager[object] = self.redis.lock(name, timeout=TTL)
        return made


class PythonRedisLock(OneClient):
    """redis_lock.Lock: waits in BLPOP for a signal; renewed by a thread for each lock, if a ttl is given."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        options = {"expire": TTL} if ttl is None else {"expire": round(ttl), "auto_renewal": True}
        made: AbstractContextManager[object] = peer("redis_lock").Lock(self.redis, name, **options)
        return made


class RedisLockPy(OneClient):
    """redis_lock.RedisLock of another package with the same module name: a message wakes all waiters."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        kind = peer("redis_lock", apart=True).RedisLock
        made: AbstractContextManager[object] = kind(self.redis, name, blocking_timeout=WAIT_MAX, expire_timeout=TTL)
        return made


class Pottery(OneClient):
    """pottery.Redlock with one master: a new pool of threads for each operation; polls every 0 to 200 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = peer("pottery").Redlock(key=name, masters={self.redis})
        return made


class Sherlock(OneClient):
    """sherlock.RedisLock: a script to acquire and one to release; polls every 100 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        kind = peer("sherlock").RedisLock
        made: AbstractContextManager[object] = kind(name, client=self.redis, timeout=WAIT_MAX)
        return made
