"""Hazard, `method=row`: a row lock that is released before the lease ends must not lead to an early grant."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

import holdfast
from holdfast import BackendError, LockLost, OutcomeUnknown
from holdfast.backends.mysql.config import config_of
from holdfast.backends.mysql.io.blocking import create_tables
from holdfast.backends.mysql.io.connections import Connections
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from tests.integration.conftest import OpenClient
from tests.integration.mysql.conftest import is_busy
from tests.support.mysql.servers import Server
from tests.support.processes import eventually, stop_process

TTL = 4.0


@pytest.fixture
def url(server: Server, database: str) -> str:
    row_url = server.url_of(database, method="row")
    create_tables(parse(row_url))
    return row_url


def holder_connection(server: Server, database: str) -> int:
    """The id of the connection on which the holder has its row lock."""
    nonce = server.value("SELECT nonce FROM holdfast_locks WHERE nonce IS NOT NULL", database=database)
    return int(server.value("SELECT IS_USED_LOCK(%s)", (f"holdfast:{nonce}",), database=""))


def waiting_sessions(server: Server, database: str) -> int:
    """How many sessions wait inside the server."""
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s AND info LIKE %s"
    return int(server.value(sql, (database, "SELECT id FROM holdfast_gates%"), database=""))


def test_a_waiter_waits_inside_the_server_and_is_granted_at_once(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    lease = open_client(url).lock("a", ttl=30).acquire(timeout=15)
    assert lease is not None
    granted: list[tuple[float, int]] = []

    def take() -> None:
        with open_client(url).lock("a", timeout=30) as second:
            granted.append((time.monotonic(), second.fence))

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: waiting_sessions(server, database) == 1)
    before = server.questions()
    time.sleep(1.0)
    # One check per second, on a connection that may have to be opened. A polling waiter would send 20 requests per
    # second.
    assert server.questions() - before < 20
    released = time.monotonic()
    lease.release()
    thread.join(30)

    ((granted_at, fence),) = granted
    assert granted_at - released < 5
    assert fence > lease.fence


def test_no_ticket_is_granted_before_the_lease_ends_when_the_holder_loses_its_connection(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    holder, other = open_client(url), open_client(url)
    lease = holder.lock("a", ttl=TTL, renew=False).acquire(timeout=15)
    assert lease is not None

    server.rows(f"KILL {holder_connection(server, database)}", database="")

    assert is_busy(other.lock("a"))
    assert other.lock("a").acquire(timeout=0.5) is None
    next_lease = other.lock("a").acquire(timeout=30)
    assert next_lease is not None
    assert lease.lost, "the lease ends before the next grant"
    assert next_lease.fence > lease.fence
    next_lease.release()


def test_a_holder_learns_at_its_next_renewal_that_it_lost_its_row_lock(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    lease = open_client(url).lock("a", ttl=TTL, on_lost="event").acquire(timeout=15)
    assert lease is not None
    server.rows(f"KILL {holder_connection(server, database)}", database="")

    assert lease.wait_lost(30)

    with pytest.raises(LockLost, match="row lock was lost"):
        lease.check()
    with open_client(url).lock("a", timeout=30):
        pass


def test_a_lease_that_lost_its_row_lock_keeps_the_lock_for_its_delay_and_not_until_its_deadline(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    holder = open_client(url)
    lease = holder.lock("a", ttl=600, lock_delay=1, on_lost="event").acquire(timeout=15)
    assert lease is not None
    server.rows(f"KILL {holder_connection(server, database)}", database="")

    before = time.monotonic()
    with pytest.raises(LockLost, match="row lock was lost"):
        lease.renew()
    next_lease = open_client(url).lock("a").acquire(timeout=60)

    assert next_lease is not None
    assert time.monotonic() >= before + 1
    assert next_lease.fence > lease.fence
    next_lease.release()


def test_a_request_in_progress_fails_at_once_when_its_session_ends(server: Server, database: str, url: str) -> None:
    runtime = ThreadRuntime()
    connections = Connections(config_of(parse(url)), BlockingPoller(), runtime)
    connection = run_sync(connections.open(runtime.now() + 60))
    errors: list[BackendError] = []

    def request() -> None:
        try:
            run_sync(connection.query("DO SLEEP(600)", runtime.now() + 600))
        except BackendError as error:
            errors.append(error)

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    sql = "SELECT id FROM information_schema.processlist WHERE db = %s AND info LIKE %s"
    eventually(lambda: len(server.rows(sql, (database, "DO SLEEP%"), database="")) == 1)
    server.rows(f"KILL {server.value(sql, (database, 'DO SLEEP%'), database='')}", database="")
    thread.join(60)
    run_sync(connections.close())

    assert [type(error) for error in errors] == [OutcomeUnknown]


def test_acquire_keeps_a_timeout_of_a_fraction_of_a_second(url: str, open_client: OpenClient) -> None:
    waiter = open_client(url)
    with waiter.lock("another", timeout=30):
        pass  # opens its connections, which may take longer than the timeout below
    with open_client(url).lock("a", ttl=30):
        began = time.monotonic()
        assert waiter.lock("a").acquire(timeout=1.3) is None
        assert 1.2 < time.monotonic() - began < 8


async def _cancel(server: Server, database: str, url: str) -> None:
    async with holdfast.AsyncClient(url) as holder, holdfast.AsyncClient(url) as other, holder.lock("a", ttl=30):
        task = asyncio.create_task(other.lock("a").acquire())
        while not waiting_sessions(server, database):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while waiting_sessions(server, database):
            await asyncio.sleep(0.01)


def test_a_cancelled_wait_ends_inside_the_server_too(server: Server, database: str, url: str) -> None:
    asyncio.run(asyncio.wait_for(_cancel(server, database, url), 30))


_HOLDER = """
import sys, time, holdfast
lease = holdfast.Client(sys.argv[1]).lock("a", ttl=3).acquire(timeout=10)
print(lease.fence, flush=True)
time.sleep(60)
"""


def test_a_stopped_holder_keeps_its_row_lock_no_longer_than_its_lease(url: str, open_client: OpenClient) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, url], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            fence = int(process.stdout.readline())
            stop_process(process.pid)

            lease = open_client(url).lock("a").acquire(timeout=90)

            assert lease is not None
            assert lease.fence > fence
            lease.release()
        finally:
            process.kill()


def test_a_client_stopped_with_the_row_lock_and_without_a_lease_is_terminated(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("a"):
        pass
    stopped = server.connect(database)
    with stopped.cursor() as cursor:  # the steps of a client before it gets the lease
        nonce = "f" * 32
        cursor.execute("SELECT GET_LOCK(%s, 0)", (f"holdfast:{nonce}",))
        stopped.begin()
        cursor.execute("SELECT id FROM holdfast_gates FOR UPDATE")
        cursor.execute("UPDATE holdfast_gates SET nonce = %s", (nonce,))

        lease = client.lock("a").acquire(timeout=90)

        assert lease is not None
        lease.release()


_WAITERS = """
import sys, threading, time, holdfast
client = holdfast.Client(sys.argv[1])

def wait():
    while True:
        try:
            return client.lock("a").acquire()
        except holdfast.BackendUnavailable:
            pass  # on a busy machine a connection may take too long

for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(120)
"""


def test_all_waiters_of_a_stopped_process_are_terminated_by_the_next_waiter(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    held = open_client(url).lock("a", ttl=60).acquire(timeout=15)
    assert held is not None
    leases: list[holdfast.Lease | None] = []
    client = open_client(url)
    with client.lock("another", timeout=30):
        pass  # opens its connections
    behind = threading.Thread(target=lambda: leases.append(client.lock("a", ttl=60).acquire(timeout=90)), daemon=True)
    with subprocess.Popen([sys.executable, "-c", _WAITERS, url]) as process:
        try:
            eventually(lambda: waiting_sessions(server, database) == 3)
            behind.start()
            eventually(lambda: waiting_sessions(server, database) == 4)
            stop_process(process.pid)
            held.release()

            behind.join()

            (lease,) = leases
            assert lease is not None
            assert waiting_sessions(server, database) == 0, "all waiters of the stopped process are terminated together"
            lease.release()
        finally:
            process.kill()


def test_waiters_with_short_timeouts_terminate_a_stopped_one_eventually(
    server: Server, database: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    held = client.lock("a", ttl=60).acquire(timeout=15)
    assert held is not None
    with subprocess.Popen([sys.executable, "-c", _WAITERS, url]) as process:
        try:
            eventually(lambda: waiting_sessions(server, database) == 3)
            stop_process(process.pid)
            held.release()

            lock = client.lock("a")
            eventually(lambda: lock.acquire(timeout=0) is not None, within=60)
            lock.release()
        finally:
            process.kill()


def test_a_broken_lock_is_free_at_once(url: str, open_client: OpenClient) -> None:
    holder, operator = open_client(url), open_client(url)
    lease = holder.lock("a", ttl=60, on_lost="event", renew=False).acquire(timeout=15)
    assert lease is not None

    assert operator.break_lock("a", fence=lease.fence)

    with operator.lock("a", timeout=10) as next_lease:
        assert next_lease.fence > lease.fence
    with pytest.raises(LockLost):
        lease.release()
