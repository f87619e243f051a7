"""Many waiters: a hand-over costs the servers the same with 100 as with 2, and every waiter is granted."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from tests.support.zookeeper import shared
from tests.support.zookeeper.servers import Server


async def _packets_per_handover(server: Server, url: str, waiters: int) -> float:
    """The packets that this server receives for each hand-over. The waiters are tasks of one client."""
    queued = 0

    def count(event: holdfast.Event) -> None:
        nonlocal queued
        queued += event.kind == "queued"

    async with holdfast.AsyncClient(url) as holder, holdfast.AsyncClient(url) as waiter_client:
        waiter_client.subscribe(count)
        lease = await holder.lock("a").acquire()
        assert lease is not None

        async def turn() -> None:
            async with waiter_client.lock("a"):
                pass

        turns = [asyncio.create_task(turn()) for _ in range(waiters)]
        while queued < waiters:
            await asyncio.sleep(0.01)
        before = server.counted("zk_packets_received")
        await lease.release()
        await asyncio.gather(*turns)
        return (server.counted("zk_packets_received") - before) / waiters


async def test_a_hand_over_costs_the_same_with_2_waiters_and_with_100() -> None:
    server = shared.own_server()
    few = min([await _packets_per_handover(server, f"{server.url}/{number}", 2) for number in range(3)])
    many = await _packets_per_handover(server, f"{server.url}/many", 100)

    # A hand-over takes a delete, and a listing and a write of the woken waiter. With two waiters, pings and heartbeats
    # are a larger share.
    assert many < 5
    assert many <= few + 1


@pytest.mark.parametrize("kind", ["lock", "read", "semaphore"])
async def test_every_waiter_of_several_clients_is_granted(url: str, kind: str) -> None:
    clients = [holdfast.AsyncClient(url) for _ in range(4)]
    inside = most = 0

    async def turns(client: holdfast.AsyncClient) -> None:
        nonlocal inside, most
        locks = {
            "lock": client.lock("a"),
            "read": client.rwlock("a").write(),
            "semaphore": client.semaphore("a", limit=3),
        }
        for number in range(8):
            reads = kind == "read" and number % 2
            async with client.rwlock("a").read() if reads else locks[kind]:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(turns(client) for client in clients for _ in range(8)))
    for client in clients:
        await client.close()

    assert most <= {"lock": 1, "read": len(clients) * 8, "semaphore": 3}[kind]
