"""Events of a lock on this store: every attempt and every lease ends exactly once, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.event_ledger import Ledger
from holdfast_lab.conformance.lab import Lab, until


async def test_attempts_and_leases_end_once(lab: Lab) -> None:
    holder, actor = lab.actor(), lab.actor()
    ledger, theirs = Ledger(actor.client), Ledger(holder.client)
    held = await holder(lambda client: client.lock("a").acquire())
    assert await actor(lambda client: client.lock("a").acquire(timeout=0)) is None
    assert await actor(lambda client: client.lock("a").acquire(timeout=0.05)) is None
    waiting = lab.start(actor, lambda client: client.lock("a").acquire(timeout=60))
    await until(lambda: asyncio.sleep(0, ledger.kinds["queued"] == 2), "it waits")
    assert actor.client.stats()[:2] == (0, 1)
    await holder(lambda _: held.release())
    lease = await waiting
    assert actor.client.stats()[:2] == (1, 0)
    assert await actor(lambda client: client.break_lock("a", lease.fence))
    with contextlib.suppress(holdfast.LockLost):
        await actor(lambda _: lease.release())
    await actor(lambda client: client.lock("b").acquire())
    await lab.aclose()

    ledger.check()
    theirs.check()
    assert ledger.path("a") == [
        *("acquiring", "not acquired: busy"),
        *("acquiring", "queued", "not acquired: timeout"),
        *("acquiring", "queued", "acquired", "lost: gone"),
    ]
    assert ledger.path("b") == ["acquiring", "acquired", "released: closed"]
    assert actor.client.stats()[:2] == (0, 0)


@pytest.mark.needs(Primitive.LOCK_ALL)
async def test_locks_of_lock_all_end_once(lab: Lab) -> None:
    holder, actor = lab.actor(), lab.actor()
    ledger = Ledger(actor.client)
    held = await holder(lambda client: client.lock("b").acquire())
    for seconds in (0, 0.05):
        taken: Any = await actor(
            lambda client, timeout=seconds: client.lock_all(["a", "b", "c"]).acquire(timeout=timeout)
        )
        assert taken is None
    await holder(lambda _: held.release())
    lease = await actor(lambda client: client.lock_all(["a", "b", "c"]).acquire(timeout=60))
    await actor(lambda _: lease.release())

    ledger.check()
    assert {path for name in "abc" for path in ledger.path(name)[-1:]} == {"released: released"}
    assert ledger.outcomes["released: undone"] >= 1
    assert ledger.outcomes["not acquired: busy"] == ledger.outcomes["not acquired: timeout"] == 1
