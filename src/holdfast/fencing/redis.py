"""Guards for keys of Redis or Valkey: the fence is kept in a key beside, in the same slot of a Cluster.

    guard = RedisGuard(redis_client)                             # AsyncRedisGuard is its twin, awaited
    guard.write(lease.fence, "HSET", "stock:7", "left", 41)      # one command, checked and run by one script
    guard.transaction("stock:7", lease.fence, lambda pipe: pipe.hset("stock:7", "left", 41).incr("sales"))

`write` is one round trip. `transaction` takes any number of commands as a redis-py pipeline and needs three: WATCH the
fence, read it, EXEC; it begins anew when another fence came in between, so its function may be called more than once.

The fence lives as long as its key is not deleted or evicted: a server that may evict keys, or that forgets its last
writes when it is killed or fails over, may forget a fence too, as it may forget the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.errors import ConfigurationError, StaleFence
from holdfast.fencing.values import check_fence, check_resource, refuse_stale

# Fences are compared as text, the longer one being the greater: numbers in Lua are exact only up to 2^53.
SCRIPT = """
local fence, seen = ARGV[1], redis.call('GET', KEYS[1]) or ''
if #fence < #seen or (#fence == #seen and fence < seen) then
  return {0, seen}
end
if fence ~= seen then
  redis.call('SET', KEYS[1], fence)
end
if #ARGV == 1 then
  return {1, false}
end
return {1, redis.call(unpack(ARGV, 2))}
"""


class RedisGuard:
    """For a redis-py client of any kind: Redis, Sentinel's, RedisCluster. It stays the caller's."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def check(self, key: str, fence: int) -> None:
        """Remember this fence for the key; refuse smaller ones from then on. Writes nothing else.

        Raises:
            StaleFence: the key has seen a newer one.
        """
        _passed(key, fence, self._client.eval(SCRIPT, 1, fence_key(key), check_fence(fence)))

    def write(self, fence: int, command: str, key: str, *arguments: Any, keys: tuple[str, ...] = ()) -> Any:
        """Run one command whose first argument is the guarded key; returns Redis's own answer to it.

        `keys` names the other keys that the command touches: a Cluster wants to know, and wants them in the same slot.

        Raises:
            StaleFence: the key has seen a newer one; the command was not run.
        """
        words = _words(fence, command, key, arguments)
        return _passed(key, fence, self._client.eval(SCRIPT, 2 + len(keys), fence_key(key), key, *keys, *words))

    def transaction(self, key: str, fence: int, fill: Callable[[Any], object]) -> list[Any]:
        """Run what `fill` puts into a pipeline as one MULTI/EXEC; returns the answers to it.

        Raises:
            StaleFence: the key has seen a newer one; nothing was run.
        """
        guard, redis = fence_key(key), _driver()
        check_fence(fence)
        with self._client.pipeline(transaction=True) as pipe:
            while True:
                try:
                    pipe.watch(guard)
                    raising = _must_raise(key, fence, pipe.get(guard))
                    pipe.multi()
                    if raising:
                        pipe.set(guard, fence)
                    fill(pipe)
                    return list(pipe.execute()[raising:])
                except redis.WatchError:
                    continue


class AsyncRedisGuard:
    """The same for a client of redis.asyncio. `fill` is a plain function: filling a pipeline awaits nothing."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def check(self, key: str, fence: int) -> None:
        """Remember this fence for the key; refuse smaller ones from then on. Writes nothing else.

        Raises:
            StaleFence: the key has seen a newer one.
        """
        _passed(key, fence, await self._client.eval(SCRIPT, 1, fence_key(key), check_fence(fence)))

    async def write(self, fence: int, command: str, key: str, *arguments: Any, keys: tuple[str, ...] = ()) -> Any:
        """Run one command whose first argument is the guarded key; returns Redis's own answer to it.

        `keys` names the other keys that the command touches: a Cluster wants to know, and wants them in the same slot.

        Raises:
            StaleFence: the key has seen a newer one; the command was not run.
        """
        words = _words(fence, command, key, arguments)
        return _passed(key, fence, await self._client.eval(SCRIPT, 2 + len(keys), fence_key(key), key, *keys, *words))

    async def transaction(self, key: str, fence: int, fill: Callable[[Any], object]) -> list[Any]:
        """Run what `fill` puts into a pipeline as one MULTI/EXEC; returns the answers to it.

        Raises:
            StaleFence: the key has seen a newer one; nothing was run.
        """
        guard, redis = fence_key(key), _driver()
        check_fence(fence)
        async with self._client.pipeline(transaction=True) as pipe:
            while True:
                try:
                    await pipe.watch(guard)
                    raising = _must_raise(key, fence, await pipe.get(guard))
                    pipe.multi()
                    if raising:
                        pipe.set(guard, fence)
                    fill(pipe)
                    return list((await pipe.execute())[raising:])
                except redis.WatchError:
                    continue


def fence_key(key: str) -> str:
    """Where the fence of a key is kept.

    >>> fence_key("stock:7"), fence_key("stock:{7}:left")
    ('{stock:7}:fence:stock:7', '{7}:fence:stock:{7}:left')
    """
    return f"{{{keys_of('', check_resource(key)).tag}}}:fence:{key}"


def _words(fence: int, command: str, key: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(command.split()) != 1:
        raise ConfigurationError(f"command must be one word such as 'SET', its arguments apart, not {command!r}")
    return check_fence(fence), command, key, *arguments


def _passed(key: str, fence: int, answer: Any) -> Any:
    passed, value = answer
    if not int(passed):
        raise StaleFence(resource=key, fence=fence, newest=int(value))
    return value


def _must_raise(key: str, fence: int, seen: Any) -> bool:
    newest = int(seen or 0)
    refuse_stale(key, fence, newest)
    return fence > newest


def _driver() -> Any:
    import redis

    return redis
