"""Hazard: many waiters of one lock are granted out of order, open a connection each, or make each hand-over more
expensive for the server.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean, await_waiters, take
from tests.support.intervals import report
from tests.support.processes import PATIENCE, eventually, now
from tests.support.redis.servers import Server


def strict_client(url: str) -> holdfast.AsyncClient:
    """Each of its callers waits at the server."""
    return holdfast.AsyncClient(url, local_handover="no")


async def test_1000_tasks_are_served_in_order_over_one_subscription(server: Server) -> None:
    order: list[str] = []

    async def visit(client: holdfast.AsyncClient) -> None:
        async with client.lock("one", timeout=100):
            task = asyncio.current_task()
            assert task is not None
            order.append(task.get_name())

    async with holdfast.AsyncClient(server.url) as holder, strict_client(server.url) as client:
        lease = await holder.lock("one").acquire()
        assert lease is not None
        tasks = [asyncio.create_task(visit(client)) for _ in range(1000)]
        while len(queue := (await holder.inspect("one")).waiters) < 1000 or not server.subscribers():
            await asyncio.sleep(0.05)
        subscribers, connections = len(server.subscribers()), len(server.clients())
        began = now()
        await lease.release()
        await asyncio.gather(*tasks)
        seconds = now() - began

    report(f"1,000 hand-overs in {seconds:.2f} s; {connections} connections of both clients")
    assert order == [waiter.agent for waiter in queue]
    assert subscribers == 1
    assert connections <= 6
    assert_free_and_clean(server, "one")


def test_200_threads_are_served_in_order_over_one_subscription(server: Server, open_client: OpenClient) -> None:
    holder, client = open_client(server.url), open_client(server.url, local_handover="no")
    lease = take(holder.lock("one"))
    order: list[str] = []
    lock = client.lock("one", timeout=100)

    def visit() -> None:
        with lock:
            order.append(threading.current_thread().name)

    threads = [threading.Thread(target=visit, daemon=True) for _ in range(200)]
    for thread in threads:
        thread.start()
    await_waiters(holder, "one", 200)
    eventually(lambda: len(server.subscribers()) == 1)
    queue = [waiter.agent for waiter in holder.inspect("one").waiters]
    began = now()
    lease.release()
    for thread in threads:
        thread.join(PATIENCE)

    report(f"200 hand-overs in {now() - began:.2f} s; {len(server.clients())} connections of both clients")
    assert order == queue
    assert len(server.subscribers()) <= 1
    assert_free_and_clean(server, "one")


@pytest.mark.slow
async def test_a_hand_over_costs_the_server_the_same_for_2_for_30_and_for_300_waiters(server: Server) -> None:
    """A release grants the lock to the next waiter if this waiter has polled within the last second. Otherwise it only
    sends the waiter a message, and the waiter polls. With 300 waiters the speed of the machine decides which of these
    happens. Without a prefix it is always the message, which costs more.
    """
    without_prefix, with_prefix = [
        [await _costs_of_hand_overs(server, url, waiters) for waiters in (2, 30, 300)]
        for url in (f"{server.url}?prefix=", server.url)
    ]
    # On a busy machine most hand-overs cost more, because other waiters poll in the meantime. The cheapest is exact.
    by_message, cheapest = [[min(costs) for costs in each] for each in (without_prefix, with_prefix)]

    report(f"commands for one hand-over, those inside scripts included: {cheapest}; always by a message: {by_message}")
    assert max(by_message) - min(by_message) <= 1
    assert max(cheapest) <= max(by_message)
    assert set(cheapest) <= {cheapest[0], by_message[0]}


@pytest.mark.slow
async def test_1000_idle_waiters_cost_next_to_nothing(server: Server) -> None:
    async with (
        holdfast.AsyncClient(server.url) as holder,
        strict_client(server.url) as client,
        holder.lock("one"),
    ):
        tasks = await _queue(holder, client, 1000)
        before, cpu, began = server.commands_run(), time.process_time(), now()
        await asyncio.sleep(3)
        seconds = now() - began
        commands = (server.commands_run() - before) / seconds
        cpu = (time.process_time() - cpu) / seconds
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    report(f"{commands:.0f} commands a second and {cpu:.0%} of a processor for 1,000 idle waiters")
    assert commands < 10_000
    assert cpu < 0.5


async def _costs_of_hand_overs(server: Server, url: str, waiters: int) -> list[int]:
    """The commands that the server runs from a release to the next grant, for each of 20 releases."""
    costs = []
    async with holdfast.AsyncClient(url) as holder, strict_client(url) as client:
        lease = await holder.lock("one").acquire()
        assert lease is not None
        tasks = await _queue(holder, client, waiters)
        for _ in range(20):
            before = server.commands_run()
            await lease.release()
            following = await tasks.pop(0)
            costs.append(server.commands_run() - before)
            assert following is not None
            lease = following
            tasks += await _queue(holder, client, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lease.release()
    server.call("FLUSHALL")
    return costs


async def _queue(
    holder: holdfast.AsyncClient, client: holdfast.AsyncClient, waiters: int
) -> list[asyncio.Task[holdfast.AsyncLease | None]]:
    waiters_before = len((await holder.inspect("one")).waiters)
    tasks = [asyncio.create_task(client.lock("one").acquire()) for _ in range(waiters)]
    while len((await holder.inspect("one")).waiters) < waiters_before + waiters:
        await asyncio.sleep(0.01)
    return tasks
