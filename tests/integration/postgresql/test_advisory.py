"""Hazard, method=advisory: the advisory lock is lost, or kept by the wrong session; only the lease counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from psycopg import sql

import holdfast
from holdfast import NameConflict
from holdfast.url import parse
from tests.integration.conftest import OpenClient
from tests.support.postgresql import shared
from tests.support.postgresql.servers import Server
from tests.support.processes import eventually

TTL = 4.0
WAITS = "%pg_advisory_lock(%"


@pytest.fixture
def url() -> str:
    return shared.fresh_url(method="advisory")


def acquired(client: holdfast.Client, name: str, ttl: float = TTL) -> holdfast.Lease:
    lease = client.lock(name, ttl=ttl).acquire(timeout=15)
    assert lease is not None
    return lease


@contextlib.contextmanager
def waiting(server: Server, client: holdfast.Client, name: str) -> Iterator[list[holdfast.Lease]]:
    """A waiter for the advisory lock; its released lease is in the list when the block has ended."""
    before = len(server.clients(WAITS))
    leases: list[holdfast.Lease] = []

    def take() -> None:
        lease = client.lock(name, ttl=TTL).acquire(timeout=60)
        assert lease is not None
        leases.append(lease)
        lease.release()

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: len(server.clients(WAITS)) > before)
    yield leases
    thread.join(70)
    assert leases


def test_a_holder_keeps_the_lock_when_its_session_is_terminated(
    server: Server, url: str, open_client: OpenClient
) -> None:
    holder, other = open_client(url), open_client(url)
    lease = acquired(holder, "a")

    with waiting(server, other, "a") as leases:
        assert server.terminate("%holdfast_pass%")  # the advisory lock is free now, and the waiter gets it
        eventually(lambda: not server.clients(WAITS))
        lease.renew()
        assert not leases
        assert open_client(url).lock("a").acquire(timeout=0) is None
        lease.release()

    assert leases[0].fence > lease.fence


def test_an_unanswered_lease_needs_no_advisory_lock(server: Server, url: str, open_client: OpenClient) -> None:
    """The answer and the advisory lock were lost with the connection; its new holder waits for this lease."""
    with open_client(url).lock("a"):
        pass
    step = sql.SQL(
        "SELECT outcome, fence, gated FROM {}.holdfast_pass('b', 'n', 60000000, 17, false, true, '', '{{}}')"
    )
    passing = step.format(sql.Identifier(parse(url).options["schema"]))
    with server.connect() as first:
        unanswered = first.execute(passing).fetchone()

    with server.connect() as other, server.connect() as again:
        other.execute("SELECT pg_advisory_lock(17)")
        answered = again.execute(passing).fetchone()

    assert unanswered is not None
    assert answered is not None
    assert (unanswered[0], unanswered[2], answered[0], answered[2]) == ("in", True, "in", False)
    assert answered[1] > unanswered[1]


def test_a_waiter_waits_again_when_its_session_is_terminated(server: Server, url: str, open_client: OpenClient) -> None:
    lease = acquired(open_client(url), "a")

    with waiting(server, open_client(url), "a"):
        assert server.terminate(WAITS)
        eventually(lambda: bool(server.clients(WAITS)))
        lease.release()


def test_a_timed_out_waiter_leaves_no_waiting_session(server: Server, url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    lease = acquired(open_client(url), "a")

    for _ in range(3):
        assert client.lock("a").acquire(timeout=0.2) is None

    eventually(lambda: not server.clients(WAITS))
    lease.release()


async def _cancelled(server: Server, url: str) -> None:
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other:
        async with client.lock("a"):
            task = asyncio.create_task(other.lock("a").acquire())
            while not server.clients(WAITS):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.clients(WAITS):
                await asyncio.sleep(0.01)
        async with other.lock("a", timeout=10):
            pass


def test_a_cancelled_task_leaves_no_waiting_session(server: Server, url: str) -> None:
    asyncio.run(_cancelled(server, url))


def test_a_stopped_process_keeps_the_advisory_lock_no_longer_than_its_lease(
    server: Server, url: str, open_client: OpenClient
) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover (in the child)
        with contextlib.suppress(BaseException):
            acquired(holdfast.Client(url), "a")
            os.write(writer, b"!")
            signal.pause()
        os._exit(0)
    os.close(writer)  # so that the end of the process is noticed
    try:
        assert os.read(reader, 1) == b"!"
        os.kill(pid, signal.SIGSTOP)
        with waiting(server, open_client(url), "a"):
            pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)


@pytest.mark.parametrize(("first", "second"), [("queue", "advisory"), ("advisory", "queue")])
def test_a_lock_of_another_method_is_refused(url: str, open_client: OpenClient, first: str, second: str) -> None:
    client_a, client_b = open_client(url.replace("advisory", first)), open_client(url.replace("advisory", second))
    lease = acquired(client_a, "a")

    for timeout in (0, 5):
        with pytest.raises(NameConflict, match=f"in use with method={first}"):
            client_b.lock("a").acquire(timeout=timeout)
    lease.renew()
    lease.release()

    with client_b.lock("a", timeout=0) as after:
        assert after.fence > lease.fence
    with client_a.lock("a", timeout=0) as last:
        assert last.fence > after.fence


def test_a_lock_with_readers_of_another_method_is_refused(url: str, open_client: OpenClient) -> None:
    reader = open_client(url.replace("advisory", "queue")).rwlock("a").read().acquire(timeout=15)
    assert reader is not None

    with pytest.raises(NameConflict, match="in use with method=queue"):
        open_client(url).lock("a").acquire(timeout=0)

    reader.release()
    with open_client(url).lock("a", timeout=0):
        pass
