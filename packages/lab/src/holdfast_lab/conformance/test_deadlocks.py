"""detect_deadlocks on every backend that shows waiters: the youngest waiter of a cycle is ended, and no other one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Actor, Lab

pytestmark = pytest.mark.needs(Primitive.DETECT_DEADLOCKS)


async def nested(actors: list[Actor], steps: list[tuple[Any, Any]]) -> list[str]:
    """Each actor acquires its first lock, and when all have, its second one; the results of the second acquires."""
    firsts = [await actor(first) for actor, (first, _) in zip(actors, steps, strict=True)]
    assert all(firsts)

    async def second(number: int) -> str:
        actor, work = actors[number], steps[number][1]
        try:
            lease = await actor(work)
        except holdfast.WouldDeadlock as error:
            result = f"deadlock of {len(error.cycle)}"
        else:
            result = "acquired" if lease else "timeout"
            if lease:
                await actor(lambda _: lease.release())
        await actor(lambda _: firsts[number].release())
        return result

    return await asyncio.wait_for(asyncio.gather(*map(second, range(len(actors)))), 60)


def lock(name: str, **options: Any) -> Any:
    return lambda client: client.lock(name, detect_deadlocks=True, **options).acquire()


async def test_two_callers_in_opposite_orders_do_not_wait_forever(lab: Lab) -> None:
    results = await nested([lab.actor(), lab.actor()], [(lock("a"), lock("b")), (lock("b"), lock("a"))])

    assert sorted(results) == ["acquired", "deadlock of 2"]
    assert [(await lab.state(name)).waiters for name in "ab"] == [(), ()]


async def test_two_callers_of_one_client_in_opposite_orders_do_not_wait_forever(lab: Lab) -> None:
    first = lab.actor()
    results = await nested([first, lab.actor(like=first)], [(lock("a"), lock("b")), (lock("b"), lock("a"))])

    assert sorted(results) == ["acquired", "deadlock of 2"]


async def test_three_callers_in_a_ring_do_not_wait_forever(lab: Lab) -> None:
    steps = [(lock("a"), lock("b")), (lock("b"), lock("c", timeout=50)), (lock("c"), lock("a"))]
    results = await nested([lab.actor(), lab.actor(), lab.actor()], steps)

    assert sorted(results) == ["acquired", "acquired", "deadlock of 3"]


@pytest.mark.needs(Primitive.RWLOCK)
async def test_readers_and_writers_do_not_wait_forever(lab: Lab) -> None:
    read = lambda client: client.rwlock("a", detect_deadlocks=True).read().acquire()  # noqa: E731
    write = lambda client: client.rwlock("a", detect_deadlocks=True).write().acquire()  # noqa: E731
    results = await nested([lab.actor(), lab.actor()], [(read, lock("b")), (lock("b"), write)])

    assert sorted(results) == ["acquired", "deadlock of 2"]


@pytest.mark.counts_waiters
async def test_a_busy_lock_without_a_cycle_is_waited_for(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lock("a"))
    await waiter(lock("b"))

    assert await waiter(lock("a", timeout=1.5)) is None
    waiting = lab.start(waiter, lock("a"))
    await lab.until_waiting("a", 1)
    await holder(lambda _: lease.release())
    assert await waiting
