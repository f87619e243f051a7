"""Hazard: tasks that acquire one lock on different connections overtake each other, or wait forever."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import BackendUnavailable
from holdfast.backends.net.aio import KeyedMutex
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioRuntime


def new_mutex() -> KeyedMutex:
    return KeyedMutex(AsyncioRuntime(), "test://")


def soon() -> float:
    return system.now() + 30


async def test_holders_of_one_key_follow_each_other_in_order() -> None:
    keyed, order = new_mutex(), []

    async def acquire(number: int) -> None:
        async with keyed.hold("a", soon()):
            order.append(number)
            for _ in range(10 - number):  # without the mutex, later tasks would end first
                await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*map(acquire, range(10)))

    assert order == [number for number in range(10) for _ in range(2)]


async def test_other_keys_are_not_blocked() -> None:
    keyed = new_mutex()

    async with keyed.hold("a", soon()), keyed.hold("b", soon()):
        pass


async def test_a_task_that_times_out_gets_an_error_and_blocks_no_other() -> None:
    keyed = new_mutex()

    async with keyed.hold("a", soon()):
        with pytest.raises(BackendUnavailable, match="took all the time"):
            async with keyed.hold("a", system.now() + 0.01):
                pass

    async with keyed.hold("a", soon()):
        pass


async def test_the_mutex_is_released_after_an_error() -> None:
    keyed = new_mutex()

    with pytest.raises(LookupError):
        async with keyed.hold("a", soon()):
            raise LookupError

    async with keyed.hold("a", soon()):
        pass
