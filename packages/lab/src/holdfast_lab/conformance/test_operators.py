"""The view of operators: holders with their start time, waiters, and events."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from holdfast_lab.checking.promises import IN_ORDER
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import Lab
from holdfast_lab.conformance.processes import PATIENCE


@pytest.mark.counts_waiters
async def test_inspect_shows_holder_and_waiters_in_order(lab: Lab, case: Case) -> None:
    holder, first, second = lab.actor(), lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", meta={"job": 7}).acquire())
    first_wait = lab.start(first, lambda client: client.lock("a", meta={"n": 1}).acquire())
    await lab.until_waiting("a", 1)
    second_wait = lab.start(second, lambda client: client.lock("a", meta={"n": 2}).acquire())
    await lab.until_waiting("a", 2)

    info = await lab.state("a")

    (shown,) = info.holders
    assert shown.fence == lease.fence
    assert shown.pid == os.getpid()
    assert shown.host == os.uname().nodename
    assert shown.meta == {"job": 7}
    assert 0 < shown.remaining <= 30
    assert abs(shown.since - time.time()) < 60
    shown_waiters = [waiter.meta["n"] for waiter in info.waiters]
    assert (shown_waiters if case.claims.order in IN_ORDER else sorted(shown_waiters)) == [1, 2]
    assert [waiter.fence for waiter in info.waiters] == [None, None]
    await holder(lambda _: lease.release())
    waits = {first_wait: first, second_wait: second}
    while waits:  # some stores grant waiters in any order
        granted, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in granted:
            await waits.pop(task)(lambda _, taken=await task: taken.release())


@pytest.mark.counts_waiters
async def test_a_holder_is_shown_since_its_grant_not_since_its_request(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)
    requested = (await lab.state("a")).waiters[0].since

    before = time.time()
    await asyncio.sleep(0.01)  # so that the times differ by more than the clocks of two processes
    await holder(lambda _: lease.release())
    taken = await waiting

    assert requested < before < (await lab.state("a")).holders[0].since
    await waiter(lambda _: taken.release())


async def test_locks_lists_what_is_in_use_and_nothing_else(lab: Lab) -> None:
    actor = lab.actor()
    leases = [await actor(lambda client, n=name: client.lock(n).acquire()) for name in ("b:1", "a:2", "a:1", "a%")]
    await actor(lambda _: leases[3].release())

    assert [info.name for info in await actor(lambda client: client.locks())] == ["a:1", "a:2", "b:1"]
    assert [info.name for info in await actor(lambda client: client.locks(prefix="a:"))] == ["a:1", "a:2"]
    assert await actor(lambda client: client.locks(prefix="a%")) == []


async def test_a_free_lock_can_be_inspected(lab: Lab) -> None:
    info = await lab.state("never used")

    assert (info.name, info.holders, info.waiters) == ("never used", (), ())


async def test_a_subscriber_receives_the_events_of_a_lease_in_order(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    events: list[Any] = []
    unsubscribe = waiter.client.subscribe(events.append)
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    async with asyncio.timeout(PATIENCE):
        while not any(event.kind == "queued" for event in events):
            await asyncio.sleep(0.01)
    await holder(lambda _: lease.release())
    taken = await waiting
    await waiter(lambda _: taken.release())
    unsubscribe()
    await waiter.body(lambda client: client.lock("a"), lambda _: None)

    kinds = [event.kind for event in events]
    assert kinds == ["acquiring", "queued", "acquired", "released"]
    assert {event.lock for event in events} == {"a"}
    assert events[-2].fence == events[-1].fence == taken.fence
    assert events[-2].seconds > 0


async def test_an_exception_of_a_subscriber_does_not_affect_the_lock(lab: Lab) -> None:
    actor = lab.actor()
    actor.client.subscribe(lambda _: 1 / 0)

    assert await actor.body(lambda client: client.lock("a"), lambda lease: lease.held)


@pytest.mark.counts_waiters
async def test_holders_and_waiters_name_their_callers(lab: Lab) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    await waiter(lambda client: client.lock("b").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)

    shown = await lab.state("a")
    (other,) = (await lab.state("b")).holders

    assert shown.holders[0].caller != shown.waiters[0].caller
    assert shown.waiters[0].caller == other.caller != ""
    assert not shown.waiters[0].detached
    listed = {info.name: info for info in await holder(lambda client: client.locks())}
    assert listed["a"].waiters[0].caller == other.caller
    await holder(lambda _: lease.release())
    await waiting
    assert (await lab.state("a")).holders[0].caller == other.caller
