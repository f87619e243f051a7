"""Several locks as one: all or none, in one order for all clients, lost together, nothing left on the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until

SHORT = 1.5  # seconds: a ttl that a busy machine can still renew in time


async def test_all_locks_are_acquired_and_released_together(lab: Lab) -> None:
    taker, other = lab.actor(), lab.actor()

    lease = await taker(lambda client: client.lock_all(["c", "a", "b", "a"], timeout=60).acquire())

    assert lease.names == ("a", "b", "c")
    assert list(lease.fences) == ["a", "b", "c"]
    assert lease.held
    assert lease.remaining > 0
    lease.check()
    for name in "abc":
        assert await other(lambda client, name=name: client.lock(name).acquire(timeout=0)) is None
    await taker(lambda _: lease.release())
    assert not lease.held
    assert not lease.lost
    for name in "abc":
        successor = await other(lambda client, name=name: client.lock(name).acquire(timeout=0))
        assert successor.fence > lease.fences[name]


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_lock_all_keeps_no_lock_when_one_is_busy(lab: Lab, timeout: float) -> None:
    holder, taker, other = lab.actor(), lab.actor(), lab.actor()
    held = await holder(lambda client: client.lock("b").acquire())

    assert await taker(lambda client: client.lock_all(["a", "b", "c"]).acquire(timeout=timeout)) is None
    with pytest.raises(holdfast.AcquireTimeout, match=r"a \+ b \+ c"):
        await taker.body(lambda client: client.lock_all(["a", "b", "c"], timeout=timeout), lambda _: None)

    for name in "ac":
        assert await other(lambda client, name=name: client.lock(name).acquire(timeout=60))
    await holder(lambda _: held.release())


async def test_lock_all_waits_for_busy_locks_one_after_the_other(lab: Lab) -> None:
    holder, taker = lab.actor(), lab.actor()
    first = await holder(lambda client: client.lock("b").acquire())
    second = await holder(lambda client: client.lock("d").acquire())
    events: list[holdfast.Event] = []
    taker.client.subscribe(events.append)

    def waits_for(name: str) -> Any:
        return asyncio.sleep(0, any(event.kind == "queued" and event.lock == name for event in events))

    taking = lab.start(taker, lambda client: client.lock_all(list("edcba"), timeout=60).acquire())
    await until(lambda: waits_for("b"), "it waits for b")
    await holder(lambda _: first.release())
    await until(lambda: waits_for("d"), "it waits for d")
    assert not taking.done()
    await holder(lambda _: second.release())

    lease = await taking
    assert lease.names == tuple("abcde")
    assert lease.fences["d"] > second.fence
    await taker(lambda _: lease.release())


async def test_two_clients_that_name_the_locks_in_the_opposite_order_never_deadlock(lab: Lab) -> None:
    first, other = lab.actor(), lab.actor()
    names = [f"n{number}" for number in range(6)]

    async def rounds(actor: Any, order: list[str]) -> int:
        done = 0
        for number in range(10):
            mine = order[number % 3 : 4 + number % 3]
            done += await actor.body(lambda client, mine=mine: client.lock_all(mine, timeout=60), lambda _: 1)
        return done

    counts = await asyncio.gather(rounds(first, names), rounds(other, names[::-1]))

    assert sum(counts) == 20


async def test_all_leases_of_lock_all_are_lost_when_one_is_lost(lab: Lab) -> None:
    taker, operator = lab.actor(), lab.actor()
    reported: list[Any] = []
    lease = await taker(lambda client: client.lock_all(["a", "b", "c"], ttl=SHORT, on_lost=reported.append).acquire())

    assert await operator(lambda client: client.break_lock("b", lease.fences["b"]))

    assert await taker(lambda _: lease.wait_lost(60))
    assert lease.lost
    with pytest.raises(holdfast.LockLost, match="'b'"):
        lease.check()
    with pytest.raises(holdfast.LockLost, match="'b'"):
        await taker(lambda _: lease.release())
    for name in "abc":
        assert await operator(lambda client, name=name: client.lock(name).acquire(timeout=60))
    await until(lambda: asyncio.sleep(0, bool(reported)), "the callback was called")
    assert reported == [lease]


async def test_lock_all_is_refused_when_its_caller_holds_one_of_the_locks(lab: Lab) -> None:
    taker = lab.actor()
    held = await taker(lambda client: client.lock("b").acquire())

    assert await taker(lambda client: client.lock_all(["a", "b"]).acquire(timeout=0)) is None
    with pytest.raises(holdfast.WouldDeadlock, match="'b'"):
        await taker(lambda client: client.lock_all(["a", "b"]).acquire())

    await taker(lambda _: held.release())
    together = await taker(lambda client: client.lock_all(["a", "b"]).acquire(timeout=60))
    with pytest.raises(holdfast.WouldDeadlock, match="'a'"):
        await taker(lambda client: client.lock("a").acquire())
    await taker(lambda _: together.release())


async def test_fifty_locks_are_acquired_renewed_and_released(lab: Lab) -> None:
    taker, other = lab.actor(), lab.actor()
    names = [f"order:{number}" for number in range(50)]
    lease = await taker(lambda client: client.lock_all(names, renew=False, timeout=60).acquire())

    await taker(lambda _: lease.renew())

    assert len(set(lease.fences)) == 50
    assert await other(lambda client: client.lock_all(names[40:]).acquire(timeout=0)) is None
    await taker(lambda _: lease.release())
    assert await other(lambda client: client.lock_all(names).acquire(timeout=60))
