"""Hazard: a lost lease or an endless wait when a connection is lost, or the server restarts, crashes or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

import holdfast
from holdfast import BackendError, BackendUnavailable
from tests.integration.conftest import OpenClient
from tests.support.postgresql.relay import Relay
from tests.support.postgresql.servers import Server
from tests.support.processes import PATIENCE, eventually

TTL = 6.0


@contextlib.contextmanager
def waiting(client: holdfast.Client, name: str) -> Iterator[list[holdfast.Lease]]:
    """A waiter for the lock, which the block must release. Then the released lease of the waiter is in the list."""
    leases: list[holdfast.Lease] = []

    def take() -> None:
        lease = client.lock(name, ttl=TTL).acquire(timeout=30)
        assert lease is not None
        leases.append(lease)

    thread = threading.Thread(target=take)
    thread.start()
    with holdfast.Client(client.url) as observer:
        eventually(lambda: len(observer.inspect(name).waiters) == 1)
    yield leases
    thread.join(40)
    assert leases
    leases[0].release()


@pytest.fixture
def hold(url: str, open_client: OpenClient) -> holdfast.Lease:
    lease = open_client(url).lock("a", ttl=TTL).acquire(timeout=15)
    assert lease is not None
    return lease


def test_a_holder_keeps_its_lease_when_its_connections_are_terminated(server: Server, hold: holdfast.Lease) -> None:
    assert server.terminate()

    hold.renew()
    assert server.terminate()
    hold.release()


def test_a_waiter_keeps_its_place_when_its_connections_are_terminated(
    server: Server, url: str, hold: holdfast.Lease, open_client: OpenClient
) -> None:
    with waiting(open_client(url), "a") as leases:
        assert server.terminate("%holdfast_enter%")
        assert open_client(url).lock("a").acquire(timeout=0) is None

        hold.release()

    assert leases[0].fence > hold.fence


def test_the_subscriber_subscribes_again_when_its_connection_is_terminated(
    server: Server, url: str, hold: holdfast.Lease, open_client: OpenClient
) -> None:
    with waiting(open_client(url), "a"):
        eventually(lambda: bool(server.clients("LISTEN%")))
        assert server.terminate("LISTEN%")
        eventually(lambda: bool(server.clients("LISTEN%")))

        hold.release()


@pytest.mark.parametrize("end", [Server.shut_down, Server.crash], ids=["restart", "crash"])
def test_leases_and_queue_entries_survive_a_restart_of_the_server(
    own_server: Server, open_client: OpenClient, end: Callable[[Server], None]
) -> None:
    holder, waiter = open_client(own_server.url), open_client(own_server.url)
    lease = holder.lock("kept", ttl=20).acquire(timeout=15)
    assert lease is not None

    with waiting(waiter, "kept") as leases:
        end(own_server)
        with pytest.raises(BackendUnavailable):
            open_client(own_server.url).lock("kept").acquire(timeout=0)
        own_server.start()
        lease.renew()
        assert open_client(own_server.url).lock("kept").acquire(timeout=0) is None
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_hung_connection_is_replaced_and_its_late_statement_is_undone(
    server: Server, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("a"):
        pass
    before = server.clients("%UPDATE%")

    with _stopped(before):
        lease = client.lock("a", ttl=60).acquire(timeout=20)
        assert lease is not None
        lease.release()

    with open_client(url).lock("a", timeout=10):
        pass


def test_a_request_to_a_hung_server_ends_at_the_deadline_and_is_undone_later(
    server: Server, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("a"):
        pass
    before = [*server.clients("%UPDATE%"), server.pid]  # also the process that accepts connections

    with _stopped(before), pytest.raises(BackendError):
        client.lock("a", ttl=60).acquire(timeout=0)

    with open_client(url).lock("a", timeout=10):
        pass


@contextlib.contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _has_unread(server: Server) -> bool:
    """A server process has received data that it has not read."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return any(local.endswith(f":{server.port:04X}") and int(queues[9:], 16) for _, local, _, _, queues, *_ in rows)


async def _cancelled_while_hung(server: Server, url: str) -> None:
    async with holdfast.AsyncClient(url) as client:
        async with client.lock("a"):
            pass
        before = server.clients("%UPDATE%")
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        try:
            task = asyncio.create_task(client.lock("a", ttl=60).acquire(timeout=10))
            while not _has_unread(server):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            for pid in before:
                os.kill(pid, signal.SIGCONT)
        async with client.lock("a", timeout=10):
            pass


def test_a_task_cancelled_while_the_server_hangs_leaves_nothing_behind(server: Server, url: str) -> None:
    asyncio.run(_cancelled_while_hung(server, url))


def test_backend_is_unavailable_when_no_server_listens(own_server: Server) -> None:
    own_server.shut_down()
    try:
        with pytest.raises(BackendUnavailable), holdfast.Client(own_server.url) as client:
            client.lock("a").acquire(timeout=0)
    finally:
        own_server.start()


# At each line on stdin it does the next step.
CLOSES_DURING_ACQUIRE = """
import os, sys, threading
import holdfast

client = holdfast.Client(sys.argv[1])
lock = client.lock("a")
may_acquire = threading.Event()

def acquire_again():
    with lock:
        pass
    print("released", flush=True)
    may_acquire.wait()
    lock.acquire()

threading.Thread(target=acquire_again, daemon=True).start()
sys.stdin.readline()
may_acquire.set()
sys.stdin.readline()
client.close()
os._exit(0)
"""


@pytest.mark.parametrize("local_handover", ["yes", "no"])
def test_a_request_that_arrives_after_its_client_was_closed_does_not_acquire(
    local_handover: str, server: Server, url: str, open_client: OpenClient
) -> None:
    with Relay(server.port) as relay:
        relayed = (
            url.replace(f":{server.port}/", f":{relay.port}/") + f"&sslmode=disable&local_handover={local_handover}"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", CLOSES_DURING_ACQUIRE, relayed], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"released\n"
            relay.hold_next_request()
            os.write(process.stdin.fileno(), b"\n")
            assert relay.is_holding.wait(PATIENCE)
            os.write(process.stdin.fileno(), b"\n")
        answers = relay.answers
        relay.pass_held()
        eventually(lambda: relay.answers > answers)

    assert process.returncode == 0
    assert open_client(url).inspect("a").holders == ()
