"""Hazard: a lost lease or an endless wait when a connection is lost, or the server restarts, crashes or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast import BackendUnavailable, OutcomeUnknown
from holdfast.backends.net.pool import CONNECTIONS_MAX
from tests.integration.conftest import OpenClient
from tests.integration.mysql.conftest import is_busy
from tests.support.mysql.servers import Server
from tests.support.processes import eventually

TTL = 6.0


@contextlib.contextmanager
def waiting(client: holdfast.Client, name: str) -> Iterator[list[holdfast.Lease]]:
    """A thread waits for the lock during the block, which must release it. Then the list has the thread's lease."""
    leases: list[holdfast.Lease] = []

    def take() -> None:
        lease = client.lock(name, ttl=TTL).acquire(timeout=40)
        assert lease is not None
        leases.append(lease)

    events: list[str] = []
    client.subscribe(lambda event: events.append(event.kind))
    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: "queued" in events)  # it has an answer, so it waits from here on
    yield leases
    thread.join(50)
    assert leases
    leases[0].release()


@pytest.fixture
def hold(url: str, open_client: OpenClient) -> holdfast.Lease:
    lease = open_client(url).lock("a", ttl=TTL).acquire(timeout=15)
    assert lease is not None
    return lease


def test_a_holder_keeps_its_lease_when_its_connections_are_killed(
    server: Server, database: str, hold: holdfast.Lease
) -> None:
    assert server.terminate(database)

    hold.renew()
    assert server.terminate(database)
    hold.release()


def test_a_waiter_keeps_its_place_when_its_connections_are_killed(
    server: Server, database: str, url: str, hold: holdfast.Lease, open_client: OpenClient
) -> None:
    with waiting(open_client(url), "a") as leases:
        assert server.terminate(database)
        assert is_busy(open_client(url).lock("a"))

        hold.release()

    assert leases[0].fence > hold.fence


def test_leases_and_queue_entries_survive_a_crash_of_the_server(own_server: Server, open_client: OpenClient) -> None:
    holder, waiter = open_client(own_server.url), open_client(own_server.url)
    lease = holder.lock("kept", ttl=30).acquire(timeout=15)
    assert lease is not None

    with waiting(waiter, "kept") as leases:
        own_server.kill()
        with pytest.raises(BackendUnavailable):
            open_client(own_server.url).lock("kept").acquire(timeout=0)
        own_server.start()
        lease.renew()
        assert is_busy(open_client(own_server.url).lock("kept"))
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_request_to_a_hung_server_ends_at_the_deadline_and_is_undone_later(
    own_server: Server, open_client: OpenClient
) -> None:
    client = open_client(own_server.url)
    with client.lock("hung"):
        pass

    own_server.stop()
    try:
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            client.lock("hung", ttl=60).acquire(timeout=0)
        assert time.monotonic() - began < 20, "the call has to end at its deadline, long before the end of the ttl"
    finally:
        own_server.resume()

    with open_client(own_server.url).lock("hung", timeout=15):
        pass


async def _cancelled_while_hung(server: Server) -> None:
    async with holdfast.AsyncClient(server.url) as client:
        async with client.lock("hung"):
            pass
        server.stop()
        try:
            task = asyncio.create_task(client.lock("hung", ttl=60).acquire(timeout=10))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            server.resume()
        async with client.lock("hung", timeout=15):
            pass


def test_a_task_cancelled_while_the_server_hangs_leaves_nothing_behind(own_server: Server) -> None:
    asyncio.run(_cancelled_while_hung(own_server))


@pytest.mark.parametrize("method", ["unique", "version"])
def test_a_late_statement_does_not_acquire_the_lock_after_its_release(
    server: Server, database: str, open_client: OpenClient, method: str
) -> None:
    client = open_client(server.url_of(database, method=method))
    with client.lock("a"):
        pass

    with contextlib.closing(server.connect(database)) as blocker, blocker.cursor() as cursor:
        blocker.begin()
        cursor.execute("SELECT * FROM holdfast_locks FOR UPDATE")  # the try_acquire waits for this row
        with pytest.raises((BackendUnavailable, OutcomeUnknown)):
            client.lock("a", ttl=60).acquire(timeout=0)
        blocker.rollback()

    with open_client(server.url_of(database, method=method)).lock("a", timeout=15):
        pass


def test_idle_connections_that_the_server_has_closed_are_noticed_before_they_are_used(
    own_server: Server, open_client: OpenClient
) -> None:
    own_server.run("SET GLOBAL wait_timeout = 1")
    try:
        client = open_client(own_server.url)
        lease = client.lock("idle", ttl=30).acquire(timeout=15)
        assert lease is not None
        assert own_server.clients("locks")
        eventually(lambda: not own_server.clients("locks"))

        lease.release()
    finally:
        own_server.run("SET GLOBAL wait_timeout = 28800")


def test_backend_is_unavailable_when_no_server_listens(own_server: Server) -> None:
    own_server.kill()
    try:
        with pytest.raises(BackendUnavailable), holdfast.Client(own_server.url) as client:
            client.lock("a").acquire(timeout=0)
    finally:
        own_server.start()


def test_backend_is_unavailable_when_the_server_has_too_many_connections(
    own_server: Server, open_client: OpenClient
) -> None:
    own_server.run("CREATE USER IF NOT EXISTS few@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1")
    own_server.run("GRANT ALL ON locks.* TO few@'127.0.0.1'")
    url = own_server.url_of(user="few")
    with open_client(url).lock("few"), pytest.raises(BackendUnavailable, match="max_user_connections"):
        open_client(url).lock("few").acquire(timeout=0)


def test_many_threads_share_sixteen_connections(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("tables"):
        pass
    begin = threading.Barrier(48)

    def take(number: int) -> None:
        begin.wait()
        with client.lock(f"n{number}", timeout=40):
            pass

    with ThreadPoolExecutor(begin.parties) as threads:
        list(threads.map(take, range(begin.parties)))

    assert len(server.clients(database)) <= CONNECTIONS_MAX
