"""Guards for keys of Redis or Valkey: the fence is kept in a side key, in the same slot of a Cluster.

    guard = RedisGuard(redis_client)                             # AsyncRedisGuard is its twin, awaited
    guard.write(lease.fence, "HSET", "stock:7", "left", 41)      # one command, checked and run by one script
    guard.transaction("stock:7", lease.fence, lambda pipe: pipe.hset("stock:7", "left", 41).incr("sales"))

`write` is one round trip. `transaction` takes any number of commands as a redis-py pipeline and needs three: WATCH and
read the fence, then EXEC. It starts again if the fence changed in between, so its function may be called more than
once.

The fence exists until its key is deleted or evicted: a server that may evict keys, or that loses its last writes in a
crash or failover, may lose a fence too, as it may lose the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.errors import ConfigurationError, StaleFence
from holdfast.fencing.values import check_fence, check_resource, refuse_stale

# Fences are compared as text, the longer one being greater, because Lua numbers are exact only up to 2^53.
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


class _Guard:
    def __init__(self, client: Any) -> None:
        self._client = client


class RedisGuard(_Guard):
    """A guard for a redis-py client of any kind: Redis, Sentinel, RedisCluster. The caller closes it."""

    def check(self, key: str, fence: int) -> None:
        """Store this fence for the key and refuse smaller ones from then on. Writes nothing else.

        Raises:
            StaleFence: the key has seen a newer one.
        """
        _value_or_stale(key, fence, self._client.eval(SCRIPT, 1, fence_key(key), check_fence(fence)))

    def write(self, fence: int, command: str, key: str, *arguments: Any, keys: tuple[str, ...] = ()) -> Any:
        """Run one command whose first argument is the guarded key; returns the reply of Redis.

        `keys` names the other keys of the command. A Cluster requires them, in the same slot.

        Raises:
            StaleFence: the key has seen a newer one; the command was not run.
        """
        words = _words(fence, command, key, arguments)
        return _value_or_stale(key, fence, self._client.eval(SCRIPT, 2 + len(keys), fence_key(key), key, *keys, *words))

    def transaction(self, key: str, fence: int, fill: Callable[[Any], object]) -> list[Any]:
        """Run the commands that `fill` adds to a pipeline as one MULTI/EXEC; returns their replies.

        Raises:
            StaleFence: the key has seen a newer one; nothing was run.
        """
        import redis

        guard = fence_key(key)
        check_fence(fence)
        with self._client.pipeline(transaction=True) as pipe:
            while True:
                try:
                    pipe.watch(guard)
                    is_newer = _must_store(key, fence, pipe.get(guard))
                    pipe.multi()
                    if is_newer:
                        pipe.set(guard, fence)
                    fill(pipe)
                    return list(pipe.execute()[is_newer:])
                except redis.WatchError:
                    continue


class AsyncRedisGuard(_Guard):
    """The same for a client of redis.asyncio. `fill` is a plain function, because filling a pipeline does not await."""

    async def check(self, key: str, fence: int) -> None:
        """Store this fence for the key and refuse smaller ones from then on. Writes nothing else.

        Raises:
            StaleFence: the key has seen a newer one.
        """
        _value_or_stale(key, fence, await self._client.eval(SCRIPT, 1, fence_key(key), check_fence(fence)))

    async def write(self, fence: int, command: str, key: str, *arguments: Any, keys: tuple[str, ...] = ()) -> Any:
        """Run one command whose first argument is the guarded key; returns the reply of Redis.

        `keys` names the other keys of the command. A Cluster requires them, in the same slot.

        Raises:
            StaleFence: the key has seen a newer one; the command was not run.
        """
        words = _words(fence, command, key, arguments)
        return _value_or_stale(
            key, fence, await self._client.eval(SCRIPT, 2 + len(keys), fence_key(key), key, *keys, *words)
        )

    async def transaction(self, key: str, fence: int, fill: Callable[[Any], object]) -> list[Any]:
        """Run the commands that `fill` adds to a pipeline as one MULTI/EXEC; returns their replies.

        Raises:
            StaleFence: the key has seen a newer one; nothing was run.
        """
        import redis

        guard = fence_key(key)
        check_fence(fence)
        async with self._client.pipeline(transaction=True) as pipe:
            while True:
                try:
                    await pipe.watch(guard)
                    is_newer = _must_store(key, fence, await pipe.get(guard))
                    pipe.multi()
                    if is_newer:
                        pipe.set(guard, fence)
                    fill(pipe)
                    return list((await pipe.execute())[is_newer:])
                except redis.WatchError:
                    continue


def fence_key(key: str) -> str:
    """The key that holds the fence of a key.

    >>> fence_key("stock:7"), fence_key("stock:{7}:left")
    ('{stock:7}:fence:stock:7', '{7}:fence:stock:{7}:left')
    """
    return f"{{{keys_of('', check_resource(key)).tag}}}:fence:{key}"


def _words(fence: int, command: str, key: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(command.split()) != 1:
        raise ConfigurationError(f"command must be one word such as 'SET', its arguments apart, not {command!r}")
    return check_fence(fence), command, key, *arguments


def _value_or_stale(key: str, fence: int, reply: Any) -> Any:
    is_accepted, value = reply
    if not int(is_accepted):
        raise StaleFence(resource=key, fence=fence, newest=int(value))
    return value


def _must_store(key: str, fence: int, stored: Any) -> bool:
    newest = int(stored or 0)
    refuse_stale(key, fence, newest)
    return fence > newest
