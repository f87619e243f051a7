"""Hazard: between the check and the write, the write of an old holder replaces a newer one in Redis."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

import holdfast
from holdfast.fencing.redis import AsyncRedisGuard, RedisGuard, fence_key
from tests.support.redis import shared

Write = Callable[[RedisGuard, str, int, object], object]


@pytest.fixture
def url() -> str:
    return shared.fresh_url().partition("?")[0]


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with redis.Redis.from_url(url, decode_responses=request.param) as made:
        yield made


@pytest.fixture
def key() -> str:
    return f"stock:{uuid.uuid4().hex}"


def by_script(guard: RedisGuard, key: str, fence: int, value: object) -> object:
    return guard.write(fence, "SET", key, value)


def by_transaction(guard: RedisGuard, key: str, fence: int, value: object) -> object:
    return guard.transaction(key, fence, lambda pipe: pipe.set(key, value))


with_script_and_transaction = pytest.mark.parametrize("write", [by_script, by_transaction])


@with_script_and_transaction
def test_a_smaller_fence_is_refused_and_an_equal_or_greater_one_passes(client: Any, key: str, write: Write) -> None:
    guard = RedisGuard(client)
    for fence in (7, 7, 10, 2**53, 2**53 + 1, 2**63 - 1):  # more digits, and more than Lua's numbers can distinguish
        write(guard, key, fence, fence)

    for stale in (7, 2**53 + 1, 2**63 - 2):
        with pytest.raises(holdfast.StaleFence) as caught:
            write(guard, key, stale, "late")
        assert (caught.value.resource, caught.value.fence, caught.value.newest) == (key, stale, 2**63 - 1)

    assert int(client.get(key)) == 2**63 - 1
    with pytest.raises(holdfast.StaleFence):
        guard.check(key, 7)


def test_the_guard_returns_the_answers_of_redis(client: Any, key: str) -> None:
    guard = RedisGuard(client)

    assert guard.write(5, "HSET", key, "left", 41, "sold", 1) == 2
    assert guard.write(5, "hincrby", key, "left", -1) == 40
    assert guard.transaction(key, 6, lambda pipe: pipe.hincrby(key, "left", -1).hlen(key)) == [39, 2]
    assert guard.transaction(key, 6, lambda pipe: pipe.hincrby(key, "left", -1).hlen(key)) == [38, 2]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        guard.write(6, "INCR", key)
    with pytest.raises(holdfast.ConfigurationError, match="one word"):
        guard.write(6, "HSET left", key)


def test_a_transaction_starts_again_when_a_newer_fence_is_stored_in_between(client: Any, key: str) -> None:
    guard = RedisGuard(client)
    calls: list[int] = []

    def fill(pipe: Any) -> None:
        if not calls:
            guard.write(8, "SET", key, "newer")
        calls.append(1)
        pipe.set(key, "late")

    with pytest.raises(holdfast.StaleFence):
        guard.transaction(key, 7, fill)

    assert client.get(key) in (b"newer", "newer")
    assert len(calls) == 1


@with_script_and_transaction
def test_many_writers_with_random_fences_never_restore_an_older_value(url: str, key: str, write: Write) -> None:
    start = threading.Barrier(6)
    history = f"{key}:history"

    def record(guard: RedisGuard, fence: int) -> None:
        if write is by_script:
            guard.write(fence, "RPUSH", key, fence)
        else:
            guard.transaction(key, fence, lambda pipe: pipe.rpush(key, fence).incr(history))

    def run(number: int) -> int:
        dice, refused = random.Random(number), 0  # noqa: S311  (repeatable, not secret)
        with redis.Redis.from_url(url) as client:
            guard = RedisGuard(client)
            start.wait()
            for step in range(60):
                try:
                    record(guard, 1 + step * 10 + dice.randrange(100))
                except holdfast.StaleFence:
                    refused += 1
        return refused

    with ThreadPoolExecutor(6) as pool:
        refused = sum(pool.map(run, range(6)))

    with redis.Redis.from_url(url) as client:
        written = [int(fence) for fence in client.lrange(key, 0, -1)]
    assert written == sorted(written)
    assert refused > 0
    assert len(written) + refused == 6 * 60


async def test_the_asyncio_twin_does_the_same(url: str, key: str) -> None:
    async with redis.asyncio.Redis.from_url(url) as client:
        guard = AsyncRedisGuard(client)

        await guard.check(key, 6)
        assert await guard.write(7, "SET", key, "a") == b"OK"
        assert await guard.transaction(key, 8, lambda pipe: pipe.append(key, "b").get(key)) == [2, b"ab"]

        for refused in (
            guard.check(key, 7),
            guard.write(7, "SET", key, "late"),
            guard.transaction(key, 7, lambda pipe: pipe.set(key, "late")),
        ):
            with pytest.raises(holdfast.StaleFence) as caught:
                await refused
            assert caught.value.newest == 8
        assert await client.get(key) == b"ab"


@pytest.mark.parametrize("name", ["plain", "a{42}b", "a}b", "{}x"])
def test_on_a_cluster_the_fence_is_in_the_slot_of_its_key(name: str) -> None:
    url = urlsplit(shared.fresh_cluster_url())
    node = url.netloc.split(",")[0].rpartition(":")
    with redis.RedisCluster(host=node[0], port=int(node[2])) as client:
        guard, key = RedisGuard(client), f"{uuid.uuid4().hex}{name}"

        assert client.keyslot(key) == client.keyslot(fence_key(key))
        guard.write(7, "SET", key, "a")
        with pytest.raises(holdfast.StaleFence):
            guard.write(6, "SET", key, "late")
        assert client.get(key) == b"a"
