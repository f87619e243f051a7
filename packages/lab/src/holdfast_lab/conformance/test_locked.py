"""Decorated functions: a busy lock is waited for, skipped or raised, and the body never runs without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.lab import Actor, Lab, until


def decorated(lab: Lab, actor: Actor, **options: Any) -> Callable[[int], Any]:
    """A function of this lab's kind that holds `order:{number}`; it returns its number and its fence."""

    def plain(number: int, *, lease: holdfast.Lease) -> tuple[int, int]:
        lease.check()
        return number, lease.fence

    async def awaited(number: int, *, lease: holdfast.AsyncLease) -> tuple[int, int]:
        lease.check()
        return number, lease.fence

    function = plain if lab.runtime == "threads" else awaited
    made: Callable[[int], Any] = actor.client.locked("order:{number}", lease="lease", **options)(function)
    return made


async def test_a_call_waits_for_the_lock_and_gives_it_back(lab: Lab) -> None:
    holder, caller = lab.actor(), lab.actor()
    call = decorated(lab, caller, timeout=60)
    lease = await holder(lambda client: client.lock("order:1").acquire())

    assert (await caller(lambda _: call(2)))[0] == 2  # another lock
    events: list[holdfast.Event] = []
    caller.client.subscribe(events.append)
    waiting = lab.start(caller, lambda _: call(1))
    await until(lambda: asyncio.sleep(0, any(event.kind == "queued" for event in events)), "the call waits")
    assert not waiting.done()
    await holder(lambda _: lease.release())

    assert await waiting > (1, lease.fence)
    assert await holder(lambda client: client.lock("order:1").acquire(timeout=0))


async def test_a_busy_lock_is_skipped_or_raised(lab: Lab) -> None:
    holder, caller = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("order:1").acquire())

    skips = decorated(lab, caller, busy="skip", skipped="later")
    assert await caller(lambda _: skips(1)) == "later"
    assert (await caller(lambda _: skips(2)))[0] == 2
    patient = decorated(lab, caller, busy="skip", timeout=0.05)
    assert await caller(lambda _: patient(1)) is None

    for raises in (decorated(lab, caller, busy="raise"), decorated(lab, caller, timeout=0.05)):
        with pytest.raises(holdfast.AcquireTimeout) as caught:
            await caller(lambda _, call=raises: call(1))
        assert caught.value.lock == "order:1"
    assert (await lab.state("order:1")).waiters == ()
