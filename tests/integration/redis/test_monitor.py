"""Hazard: a monitor loads the server, misses locks that a search finds late, or ends when the server is down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import holdfast
from holdfast.monitor import AsyncMonitor, Monitor, Snapshot
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import take
from tests.integration.redis.test_listing import fill
from tests.support.processes import eventually
from tests.support.redis.servers import Server


def poll_until(monitor: Monitor, condition: Callable[[Snapshot], bool]) -> Snapshot:
    snapshots: list[Snapshot] = []

    def is_met() -> bool:
        monitor.wait(0.01)
        snapshots.append(monitor.poll())
        return condition(snapshots[-1])

    eventually(is_met)
    return snapshots[-1]


def test_a_monitor_shows_new_and_released_locks(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    with Monitor(client) as monitor:
        first = monitor.poll()
        lease = take(client.lock("a"))
        second = poll_until(monitor, lambda snapshot: bool(snapshot.locks))
        lease.release()
        third = poll_until(monitor, lambda snapshot: not snapshot.locks)

    assert (first.locks, first.searched) == ((), 1.0)
    assert [(change.kind, change.lock) for change in (*second.changes, *third.changes)] == [
        ("acquired", "a"),
        ("released", "a"),
    ]


def test_a_short_first_search_returns_early_and_later_polls_find_the_other_locks(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(f"{server.url}?method=setnx")
    fill(server, 5000)
    lease = take(client.lock("a"))

    with Monitor(client, first_search=0.0) as monitor:
        first = monitor.poll()
        later = poll_until(monitor, lambda snapshot: bool(snapshot.locks))
        poll_until(monitor, lambda snapshot: snapshot.searched == 1.0)

    assert first.searched < 1.0
    assert [change.kind for change in later.changes] == ["holds"]
    lease.release()


def test_a_monitor_goes_on_after_an_outage(start_server: StartServer) -> None:
    server = start_server()
    with holdfast.Client(server.url) as client, Monitor(client) as monitor:
        lease = take(client.lock("a"))
        monitor.poll()
        server.kill()

        down = poll_until(monitor, lambda snapshot: snapshot.error is not None)
        start_server(port=server.port)
        up = poll_until(monitor, lambda snapshot: snapshot.error is None)

        assert [change.kind for change in down.changes] == ["unavailable"]
        assert [lock.name for lock in down.locks] == ["a"]
        assert up.changes[0].kind == "available"
        assert up.read_at > down.read_at > 0.0
        with pytest.raises(holdfast.LockLost):  # the server lost its data
            lease.release()


def test_an_asyncio_monitor_reads_locks(server: Server) -> None:
    async def names() -> list[str]:
        async with holdfast.AsyncClient(server.url) as client, AsyncMonitor(client) as monitor:
            async with client.lock("a"), client.semaphore("s", 3):
                snapshot = await monitor.poll()
            return [f"{lock.name} {lock.kind_text}" for lock in snapshot.locks]

    assert sorted(asyncio.run(names())) == ["a lock", "s semaphore 3"]


def test_polls_of_many_locks_take_a_small_share_of_the_server(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    leases = [take(client.lock(f"lock-{number}")) for number in range(100)]

    with Monitor(client) as monitor:
        monitor.poll()
        before = float(server.info("cpu")["used_cpu_user_main_thread"])
        seconds = sum(monitor.poll().poll_seconds for _ in range(5))
        used = float(server.info("cpu")["used_cpu_user_main_thread"]) - before

    assert used < seconds * 0.3  # the pauses limit reads to LIVE_SHARE, which is 0.1; the renewals count too
    for lease in leases:
        lease.release()
