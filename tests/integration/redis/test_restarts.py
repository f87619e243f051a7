"""Hazard: the server restarts, with or without its data, while a lock has a holder and waiters.

Without data the lock is free at once, and a holder learns of the loss at its next renewal. This is the meaning of
`best-effort` exclusion. The fence of the next holder is greater in any case.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import assert_free_and_clean, assert_lost, await_waiters, take, waiting
from tests.support.processes import now
from tests.support.redis.servers import Server


@pytest.fixture
def durable(start_server: StartServer) -> Server:
    """A server that writes to its disk before it replies."""
    return start_server("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def volatile(start_server: StartServer) -> Server:
    """A server that does not write to its disk."""
    return start_server()


def test_a_restart_with_data_under_a_holder_costs_it_nothing(durable: Server, open_client: OpenClient) -> None:
    holder, other = open_client(durable.url), open_client(durable.url)
    lease = take(holder.lock("one", ttl=5))

    durable.restart()

    assert not lease.wait_lost(3.5)  # two renewals
    assert other.lock("one").acquire(timeout=0) is None
    lease.release()
    after = take(other.lock("one"), timeout=0)
    assert after.fence > lease.fence
    after.release()
    assert_free_and_clean(durable, "one")


def test_the_holder_learns_of_a_restart_without_data_at_its_next_renewal(
    volatile: Server, open_client: OpenClient
) -> None:
    holder, other = open_client(volatile.url), open_client(volatile.url)
    lease = take(holder.lock("one", ttl=6))

    volatile.restart()
    after = take(other.lock("one"), timeout=10)

    assert after.fence > lease.fence
    assert lease.wait_lost(6)
    with pytest.raises(holdfast.LockLost):
        lease.release()
    after.renew()  # the clean-up of the first client does not end this lease
    after.release()


@pytest.mark.parametrize("has_data", [True, False], ids=["with data", "without data"])
def test_a_waiter_outlives_a_restart_and_gets_the_lock(
    has_data: bool,  # noqa: FBT001  a parameter of the test
    start_server: StartServer,
    open_client: OpenClient,
) -> None:
    server = start_server(*(("--appendonly", "yes", "--appendfsync", "always") if has_data else ()))
    holder, waiter = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one", ttl=30, renew=False))
    pending = waiting(waiter, "one")

    server.restart()
    if has_data:
        await_waiters(holder, "one", 1)
        assert not pending.done()
        lease.release()

    assert pending.result(timeout=20).fence > lease.fence
    if not has_data:
        assert_lost(lease)
    pending.result().release()
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("has_data", [True, False], ids=["with data", "without data"])
async def test_asyncio_waiters_outlive_a_restart_and_get_the_lock_one_by_one(
    has_data: bool,  # noqa: FBT001  a parameter of the test
    start_server: StartServer,
) -> None:
    server = start_server(*(("--appendonly", "yes", "--appendfsync", "always") if has_data else ()))
    inside = most = 0

    async def visit(client: holdfast.AsyncClient) -> int:
        nonlocal inside, most
        async with client.lock("one", timeout=30) as lease:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            return lease.fence

    async with holdfast.AsyncClient(server.url) as holder, holdfast.AsyncClient(server.url) as waiter:
        lease = await holder.lock("one", renew=False).acquire()
        assert lease is not None
        events: list[str] = []
        waiter.subscribe(lambda event: events.append(event.kind))
        visits = [asyncio.create_task(visit(waiter)) for _ in range(20)]
        while events.count("queued") < 20:
            await asyncio.sleep(0.01)

        server.restart()  # blocks this loop too, so the clients run again only after the restart
        if has_data:
            with contextlib.suppress(holdfast.BackendError):  # then the client repeats it in the background
                await lease.release()

        fences = await asyncio.gather(*visits)
        assert most == 1
        assert min(fences) > lease.fence
        assert len(set(fences)) == 20


def test_a_wait_that_times_out_in_an_outage_reports_the_outage(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server()
    holder, waiter = open_client(server.url), open_client(server.url)
    lease = take(holder.lock("one", ttl=30, renew=False))
    began = now()
    pending = waiting(waiter, "one", timeout=3)

    server.kill()

    with pytest.raises(holdfast.BackendError):
        pending.result(timeout=30)
    assert now() - began >= 3  # it kept trying until its timeout
    server.start()
    assert_lost(lease)


def test_closing_a_client_whose_server_is_gone_neither_hangs_nor_raises(start_server: StartServer) -> None:
    server = start_server()
    client = holdfast.Client(server.url)
    lease = take(client.lock("one"))
    server.kill()

    began = now()
    client.close()

    assert now() - began < 15
    assert not lease.held
