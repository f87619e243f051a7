"""Tasks that come to the same lock on connections of their own: none overtakes another, none waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import BackendUnavailable
from holdfast.backends.net.aio import KeyedMutex
from holdfast.runtimes import system
from holdfast.runtimes.aio import AsyncioRuntime


def mutex() -> KeyedMutex:
    return KeyedMutex(AsyncioRuntime(), lambda: BackendUnavailable(backend="test://", problem="others were asking"))


def soon() -> float:
    return system.now() + 30


async def test_those_who_come_to_the_same_lock_are_served_one_after_the_other_in_their_order() -> None:
    here, served = mutex(), []

    async def come(number: int) -> None:
        async with here.hold("a", soon()):
            served.append(number)
            for _ in range(10 - number):  # the later ones would be faster
                await asyncio.sleep(0)
            served.append(number)

    await asyncio.gather(*map(come, range(10)))

    assert served == [number for number in range(10) for _ in range(2)]


async def test_other_locks_are_not_held_up() -> None:
    here = mutex()

    async with here.hold("a", soon()), here.hold("b", soon()):
        pass


async def test_who_does_not_get_its_turn_in_time_is_told_so_and_holds_up_nobody() -> None:
    here = mutex()

    async with here.hold("a", soon()):
        with pytest.raises(BackendUnavailable, match="others were asking"):
            async with here.hold("a", system.now() + 0.01):
                pass

    async with here.hold("a", soon()):
        pass


async def test_a_turn_ends_with_an_error_too() -> None:
    here = mutex()

    with pytest.raises(LookupError):
        async with here.hold("a", soon()):
            raise LookupError

    async with here.hold("a", soon()):
        pass
