"""Lost replies, closed sessions, cancellations: the node of a ticket is found and used, or it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import holdfast
from holdfast import LockLost, OutcomeUnknown
from holdfast.backends.zookeeper.io.driver import KazooSession
from holdfast.runtimes import system
from tests.integration.conftest import OpenClient
from tests.integration.zookeeper.harness import harness, ticket
from tests.support.processes import PATIENCE, WorkerPool, eventually
from tests.support.redis.proxy import Proxy
from tests.support.zookeeper.servers import Server, kazoo


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.fixture
def proxied(proxy: Proxy, url: str, server: Server) -> str:
    """The same store, through the proxy."""
    return url.replace(f":{server.port}/", f":{proxy.port}/") + "?session_timeout=6"


@contextlib.contextmanager
def observing(server: Server) -> Iterator[KazooClient]:
    with kazoo(server.address) as client:
        yield client


def sessions(observer: KazooClient, url: str) -> list[str]:
    """The nodes of sessions. The first heartbeat creates their parent, so none exist before."""
    try:
        children: list[str] = observer.get_children(f"{root_of(url)}/%sessions")
    except NoNodeError:
        return []
    return children


def root_of(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2].partition("?")[0]


@pytest.mark.parametrize("then", ["cut", "hang"])
def test_a_created_node_is_found_and_used_when_its_reply_was_lost(
    proxy: Proxy, proxied: str, server: Server, open_client: OpenClient, then: str
) -> None:
    client = open_client(proxied)
    with client.lock("other"):
        pass
    client._engine.io_timeout = 1.0

    proxy.lose_next_reply("-lock-", then="cut" if then == "cut" else "hang")
    lease = client.lock("a").acquire(timeout=20)

    assert lease is not None
    with observing(server) as observer:
        assert len(observer.get_children(f"{root_of(proxied)}/a")) == 1
        lease.release()
        eventually(lambda: observer.get_children(f"{root_of(proxied)}/a") == [])


def test_a_delete_is_repeated_when_its_reply_was_lost(proxy: Proxy, proxied: str, open_client: OpenClient) -> None:
    client, other = open_client(proxied), open_client(proxied)
    lease = client.lock("a").acquire()
    assert lease is not None
    backend: Any = client._engine.backend
    node = backend._ticket_nodes[lease._claim.nonce].path

    proxy.lose_next_request(node)
    with pytest.raises(OutcomeUnknown):
        lease.release()

    with other.lock("a", timeout=20):  # the keeper has repeated the release
        pass


def test_a_wait_that_ends_during_an_outage_leaves_no_node(
    proxy: Proxy, proxied: str, url: str, open_client: OpenClient
) -> None:
    holder, waiter = open_client(url), open_client(proxied)
    lease = holder.lock("a").acquire()
    assert lease is not None
    waiter._engine.io_timeout = 0.5

    threading.Timer(0.5, proxy.refuse).start()
    with contextlib.suppress(holdfast.BackendError):
        assert waiter.lock("a").acquire(timeout=2) is None
    proxy.heal()

    eventually(lambda: holder.inspect("a").waiters == ())
    lease.release()


def test_leases_are_lost_when_another_client_closes_the_session(
    url: str, server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(f"{url}?session_timeout=6"), open_client(url)
    lease = client.lock("a").acquire()
    assert lease is not None
    with kazoo(server.address, timeout=6.0):
        _end_session(client, server)

    successor = other.lock("a").acquire(timeout=20)

    assert successor is not None
    assert lease.wait_lost(PATIENCE)
    with pytest.raises(LockLost, match="session"):
        lease.check()
    assert client.lock("a").acquire(timeout=0) is None
    again = client.lock("b").acquire(timeout=20)
    assert again is not None, "on a new session"
    again.release()
    successor.release()


def test_a_loss_is_reported_as_soon_as_the_end_of_the_session_is_known(
    url: str, server: Server, open_client: OpenClient
) -> None:
    client, reported = open_client(url), threading.Event()
    lease = client.lock("a", ttl=30, renew=False, on_lost=lambda _: reported.set()).acquire()
    assert lease is not None

    _end_session(client, server)

    assert reported.wait(10), "reported before its deadline, and without a renewal"
    assert lease.lost


async def test_a_body_is_cancelled_as_soon_as_the_end_of_the_session_is_known(url: str, server: Server) -> None:
    async with holdfast.AsyncClient(url) as client, asyncio.timeout(10):
        with pytest.raises(LockLost, match="session"):
            async with client.lock("a", ttl=30, renew=False):
                (session,) = client._engine.backend._port.sessions  # type: ignore[attr-defined]  # the port of ZooKeeper
                await asyncio.to_thread(_close_elsewhere, session, server)
                await asyncio.sleep(PATIENCE)


def test_a_waiter_continues_to_wait_when_its_session_ends(url: str, server: Server, open_client: OpenClient) -> None:
    holder, waiter = open_client(url), open_client(f"{url}?session_timeout=6")
    lease = holder.lock("a").acquire()
    assert lease is not None
    leases: list[holdfast.Lease | None] = []
    thread = threading.Thread(target=lambda: leases.append(waiter.lock("a").acquire(timeout=PATIENCE)))
    thread.start()
    eventually(lambda: len(holder.inspect("a").waiters) == 1)

    _end_session(waiter, server)
    eventually(lambda: len(holder.inspect("a").waiters) == 1)
    lease.release()

    thread.join(PATIENCE)
    assert leases[0] is not None
    leases[0].release()


async def test_a_cancelled_task_leaves_no_node(url: str, server: Server) -> None:
    async with holdfast.AsyncClient(url) as client:
        lease = await client.lock("a").acquire()
        assert lease is not None

        async def acquire() -> None:  # in another task, because a lease belongs to the task that calls acquire()
            await client.lock("a").acquire()

        for seconds in (0.0, 0.001, 0.003, 0.01):
            task = asyncio.create_task(acquire())
            await asyncio.sleep(seconds)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(PATIENCE):
            while (await client.inspect("a")).waiters:
                await asyncio.sleep(0.01)
        await lease.release()


def test_an_idle_client_closes_its_session(
    url: str, server: Server, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.zookeeper.protocol.heartbeat.IDLE_MAX", 0.2)
    client = open_client(f"{url}?session_timeout=3")  # longer than the pauses of a busy machine
    with client.lock("a"):
        port = client._engine.backend._port  # type: ignore[attr-defined]  # only ZooKeeper has it
        assert port.sessions

    eventually(lambda: not port.sessions)

    monkeypatch.undo()  # the next request may take longer than this on a busy machine
    with client.lock("a"):
        pass


def test_a_client_acquires_at_once_after_it_has_only_read_for_longer_than_a_session(
    url: str, open_client: OpenClient
) -> None:
    client = open_client(f"{url}?session_timeout=4")
    client.locks()
    backend: Any = client._engine.backend
    (session,) = backend._heartbeats._heartbeats

    eventually(lambda: client.locks() == [] and backend._heartbeats.proven(session) < system.now())
    lease = client.lock("a").acquire(timeout=0)

    assert lease is not None
    lease.release()


def _end_session(client: holdfast.Client, server: Server) -> None:
    (session,) = client._engine.backend._port.sessions  # type: ignore[attr-defined]  # the port of ZooKeeper
    _close_elsewhere(session, server)


def _close_elsewhere(session: KazooSession, server: Server) -> None:
    """Close the session from another client, which has its id and password."""
    other = KazooClient(server.address, client_id=session._client.client_id, timeout=6.0)
    other.start(timeout=PATIENCE)
    other.stop()
    other.close()


async def test_a_new_task_does_not_overtake_tasks_that_wait_for_the_connection(url: str) -> None:
    """Kazoo's thread sets the connection before it wakes the loop, so a new task can use it before waiting tasks."""
    async with holdfast.AsyncClient(url) as client:
        order: list[str] = []

        async def take(name: str) -> None:
            async with client.lock("a"):
                order.append(name)

        first = asyncio.create_task(take("first"))
        await asyncio.sleep(0)
        ensemble = client._engine.backend._port  # type: ignore[attr-defined]  # only ZooKeeper has it
        eventually(lambda: bool(ensemble.sessions[0].connection))  # without an iteration of the loop
        second = asyncio.create_task(take("second"))
        await asyncio.gather(first, second)

        assert order == ["first", "second"]


@pytest.mark.parametrize("failing", ["(zk_loop)", "holdfast-heartbeat"], ids=["the connection's", "the heartbeat's"])
def test_a_client_works_again_after_a_thread_could_not_be_started(
    url: str, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    start, failed = threading.Thread.start, False

    def fail(thread: threading.Thread) -> None:
        nonlocal failed
        if failing in thread.name and not failed:
            failed = True
            raise RuntimeError("can't start new thread")
        start(thread)

    client = open_client(url)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(holdfast.ThreadStartError, match="can't start new thread"):
            client.lock("a", ttl=3).acquire(timeout=20)

    lease = client.lock("a", ttl=3).acquire(timeout=20)
    assert lease is not None
    assert not lease.wait_lost(4.0), "the session is kept and proven for longer than its timeout"
    lease.release()


@pytest.mark.parametrize("timeout", [0, 20])
def test_an_acquire_succeeds_after_a_pause_longer_than_the_session(
    url: str, server: Server, pool: WorkerPool, timeout: int
) -> None:
    with observing(server) as observer:
        process = pool.start(url)
        process.call("acquire", lock="a", ttl=3)
        process.call("release", lock="a")
        eventually(lambda: len(sessions(observer, url)) == 1)
        process.stop()
        eventually(lambda: sessions(observer, url) == [])
        process.resume()

        assert process.call("acquire", lock="a", ttl=3, timeout=timeout)["acquired"] is not None
        process.call("release", lock="a")


def test_a_ticket_that_is_released_while_nodes_are_listed_is_not_reported_as_restored(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with harness(url) as ours:
        claim, is_listed = ticket("a"), threading.Event()

        def release() -> None:
            ours.release([claim])
            is_listed.set()

        ours.ensemble.around_listing = (lambda: ours.try_acquire(claim), release)
        ours.try_acquire(ticket("b"))  # opens the session, whose heartbeat lists its nodes
        assert is_listed.wait(PATIENCE)
        eventually(lambda: ours.locked() == ["b"])

    assert "exist again" not in caplog.text
