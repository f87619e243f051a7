"""Hazard: a task is cancelled at an await of acquire, release, renew or a body, and its lock stays held.

Each scenario runs repeatedly. In the k-th run the task is cancelled when it suspends for the k-th time. The methods
of the backend suspend before and after their request is executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.event_ledger import Ledger
from holdfast_lab.conformance.lab import until
from tests.support.faulty import Faults

Scenario = Callable[[holdfast.AsyncClient, holdfast.AsyncClient], Awaitable[Any]]


async def acquire_a_free_lock(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    return await client.lock("a").acquire()


async def acquire_a_busy_lock(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    held = await other.lock("a").acquire()
    assert held is not None
    releasing = asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(held.release()))
    try:
        return await client.lock("a").acquire()
    finally:
        releasing.cancel()
        with contextlib.suppress(holdfast.NotHeld):  # the other release has begun
            await asyncio.shield(held.release())


async def give_up_on_a_busy_lock(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    held = await other.lock("a").acquire()
    assert held is not None
    try:
        assert await client.lock("a").acquire(timeout=0.02) is None
    finally:
        await asyncio.shield(held.release())


async def acquire_and_release(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    lock = client.lock("a")
    await lock.acquire()
    try:
        await asyncio.sleep(0)
    finally:
        await lock.release()


async def renew(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    async with client.lock("a") as lease:
        await lease.renew()


async def nested_bodies(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    lock = client.lock("a", reentrant=True)
    async with lock, lock, client.rwlock("b").read():
        await asyncio.sleep(0)


async def readers_and_a_writer(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    async with other.rwlock("a").read():
        return await client.rwlock("a").write().acquire(timeout=0.02)


async def acquire_several(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    return await client.lock_all(["a", "b", "c"]).acquire()


async def acquire_several_of_which_one_is_busy(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    held = await other.lock("b").acquire()
    assert held is not None
    releasing = asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(held.release()))
    try:
        return await client.lock_all(["a", "b", "c"]).acquire()
    finally:
        releasing.cancel()
        with contextlib.suppress(holdfast.NotHeld):  # the other release has begun
            await asyncio.shield(held.release())


async def give_up_on_several(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    held = await other.lock("c").acquire()
    assert held is not None
    try:
        assert await client.lock_all(["a", "b", "c"]).acquire(timeout=0.02) is None
    finally:
        await asyncio.shield(held.release())


async def a_body_that_holds_several(client: holdfast.AsyncClient, other: holdfast.AsyncClient) -> Any:
    async with client.lock_all(["a", other.lock("b"), "c"]) as lease:
        await lease.renew()


@pytest.mark.parametrize(
    "scenario",
    [
        acquire_a_free_lock,
        acquire_a_busy_lock,
        give_up_on_a_busy_lock,
        acquire_and_release,
        renew,
        nested_bodies,
        readers_and_a_writer,
        acquire_several,
        acquire_several_of_which_one_is_busy,
        give_up_on_several,
        a_body_that_holds_several,
    ],
    ids=lambda scenario: scenario.__name__,
)
async def test_a_cancellation_at_any_await_leaves_no_lock_taken(
    scenario: Scenario, faulty_url: str, faults: Faults
) -> None:
    for k in itertools.count(1):
        if not await _cancelled_at(k, scenario, faulty_url, faults):
            break

    assert k > 2, "the scenario never suspended: this test would show nothing"


async def _cancelled_at(k: int, scenario: Scenario, url: str, faults: Faults) -> bool:
    """Run the scenario, cancelled at its k-th suspension; False if there were fewer.

    Asserts that all locks are free afterwards, and that both clients still work.
    """
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other:
        suspended = 0
        ledgers = Ledger(client), Ledger(other)

        async def suspend() -> None:
            nonlocal suspended
            if asyncio.current_task() is task:
                suspended += 1
                if suspended == k:
                    task.cancel()
            await asyncio.sleep(0)

        async def run() -> Any:
            return await scenario(client, other)

        for verb in ("try_acquire", "try_acquire_all", "wait", "release", "renew"):
            faults.plan(verb, suspend)
        task = asyncio.create_task(run())
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        reached = suspended >= k
        assert not reached or isinstance(outcome, asyncio.CancelledError), outcome
        if isinstance(outcome, holdfast.AsyncLease | holdfast.AsyncLeaseAll):
            await outcome.release()

        async def are_all_free() -> bool:
            return not await other.locks()

        await until(are_all_free, f"all locks free after a cancellation at suspension {k}")
        async with client.lock("a", timeout=5), client.lock("b", timeout=5):
            pass
        for ledger in ledgers:
            ledger.check()
        assert client.stats()[:2] == other.stats()[:2] == (0, 0)
        return reached
