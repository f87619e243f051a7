"""Locks on one Redis server: holdfast beside the Python libraries that have one, and beside two bare calls."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from benchmarks.adapters import Holdfast, HoldfastAsync, Tooz
from benchmarks.contender import Arena, Contender
from benchmarks.contenders.redis import floors, peers
from benchmarks.servers import Redis

_FAMILY: dict[str, Any] = {"arena": Arena.REDIS, "server": Redis()}
_OURS: dict[str, Any] = {"ours": True, "package": "holdfast", "driver": "redis", "has_ttl": True}
_CLIENT = "import redis\nclient = redis.Redis.from_url(sys.argv[1])\n"

CONTENDERS = [
    Contender(
        name="holdfast redis",
        threads=Holdfast,
        imports="import holdfast",
        first_use="client = holdfast.Client(sys.argv[1])\nwith client.lock('a'): pass\nclient.close()",
        waits="is woken",
        order="by turns",
        at_server="?local_handover=no",
        has_fence=True,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast redis, strict FIFO",
        threads=lambda url: Holdfast(f"{url}?local_handover=no"),
        imports="import holdfast",
        first_use=None,
        waits="is woken",
        order="FIFO",
        has_fence=True,
        only_in=("threads",),
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast redis asyncio",
        tasks=HoldfastAsync,
        imports="import asyncio, holdfast",
        first_use="""
async def main():
    async with holdfast.AsyncClient(sys.argv[1]) as client:
        async with client.lock('a'): pass
asyncio.run(main())
""",
        waits="is woken",
        order="by turns",
        at_server="?local_handover=no",
        has_fence=True,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast setnx",
        threads=lambda url: Holdfast(f"{url}?method=setnx"),
        imports="import holdfast",
        first_use=None,
        waits="polls",
        has_fence=True,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="holdfast setnx asyncio",
        tasks=lambda url: HoldfastAsync(f"{url}?method=setnx"),
        imports="import asyncio, holdfast",
        first_use=None,
        waits="polls",
        has_fence=True,
        **_FAMILY,
        **_OURS,
    ),
    Contender(
        name="redis-py Lock",
        threads=peers.RedisPyLock,
        package="redis",
        imports="import redis",
        first_use=f"{_CLIENT}with client.lock('a', timeout=30): pass",
        waits="polls, 100 ms",
        **_FAMILY,
    ),
    Contender(
        name="redis-py Lock asyncio",
        tasks=peers.RedisPyLockAsync,
        package="redis",
        imports="import asyncio, redis.asyncio",
        first_use="""
async def main():
    async with redis.asyncio.Redis.from_url(sys.argv[1]) as client:
        async with client.lock('a', timeout=30): pass
asyncio.run(main())
""",
        waits="polls, 100 ms",
        baseline_of=("many",),
        **_FAMILY,
    ),
    Contender(
        name="python-redis-lock",
        threads=peers.PythonRedisLock,
        package="python-redis-lock",
        imports="import redis_lock",
        first_use=f"{_CLIENT}with redis_lock.Lock(client, 'a', expire=30): pass",
        waits="is woken, one of all",
        has_ttl=True,
        baseline_of=("contended", "threads", "waiters"),
        **_FAMILY,
    ),
    Contender(
        name="redis-lock-py",
        threads=peers.RedisLockPy,
        package="redis-lock-py",
        imports="sys.path.insert(0, sys.prefix + '/apart')\nimport redis_lock",
        first_use=f"{_CLIENT}with redis_lock.RedisLock(client, 'a', expire_timeout=30): pass",
        waits="all are woken",
        **_FAMILY,
    ),
    Contender(
        name="pottery",
        threads=peers.Pottery,
        package="pottery",
        imports="import pottery",
        first_use=f"{_CLIENT}with pottery.Redlock(key='a', masters={{client}}): pass",
        waits="polls, 0–200 ms",
        **_FAMILY,
    ),
    Contender(
        name="sherlock",
        threads=peers.Sherlock,
        package="sherlock",
        driver="redis",
        imports="import sherlock",
        first_use=f"{_CLIENT}with sherlock.RedisLock('a', client=client): pass",
        waits="polls, 100 ms",
        **_FAMILY,
    ),
    Contender(
        name="tooz",
        threads=lambda url: Tooz(f"redis://{urlsplit(url).netloc}"),  # whose lock is redis-py's; polls every 100 ms
        package="tooz",
        driver="redis",
        imports="from tooz import coordination",
        first_use="""
coordinator = coordination.get_coordinator(sys.argv[1].removesuffix('/0'), b'me')
coordinator.start()
with coordinator.get_lock(b'a'): pass
coordinator.stop()
""",
        waits="polls, 100 ms",
        **_FAMILY,
    ),
    Contender(
        name="two redis-py calls",
        is_floor=True,
        threads=floors.TwoCalls,
        package="redis",
        imports="import redis",
        first_use=None,
        waits=None,
        **_FAMILY,
    ),
    Contender(
        name="two redis-py calls asyncio",
        is_floor=True,
        tasks=floors.TwoCallsAsync,
        package="redis",
        imports="import asyncio, redis.asyncio",
        first_use=None,
        waits=None,
        **_FAMILY,
    ),
    Contender(
        name="two Connection calls",
        is_floor=True,
        threads=floors.TwoConnectionCalls,
        package="redis",
        imports="import redis",
        first_use=None,
        waits=None,
        baseline_of=("uncontended",),
        **_FAMILY,
    ),
    Contender(
        name="two Connection calls asyncio",
        is_floor=True,
        tasks=floors.TwoConnectionCallsAsync,
        package="redis",
        imports="import asyncio, redis.asyncio",
        first_use=None,
        waits=None,
        **_FAMILY,
    ),
]
