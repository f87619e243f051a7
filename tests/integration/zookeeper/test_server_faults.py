"""Servers die, hang, restart or lose their majority: leases continue if possible, and exclusion holds."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

import holdfast
from holdfast import BackendError, BackendUnavailable
from holdfast.guarantees import FenceOrder
from tests.integration.conftest import OpenClient
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.proxy import Proxy
from tests.support.server_process import running
from tests.support.zookeeper.ensembles import ProxiedEnsemble
from tests.support.zookeeper.servers import Server, kazoo

WAITERS = 50


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that a test may kill."""
    with running(Server(tmp_path_factory.mktemp("zookeeper") / "server")) as started:
        yield started


def test_a_lease_and_a_waiter_survive_the_death_of_the_leader(
    ensemble: ProxiedEnsemble, open_client: OpenClient
) -> None:
    url = ensemble.url(session_timeout=40)
    holder, waiter = open_client(url), open_client(url)
    lease = holder.lock("a", ttl=40).acquire(timeout=0)
    assert lease is not None
    with _waiting(waiter, "a") as leases:
        ensemble.leader.kill()
        ensemble.await_answer()

        lease.renew()
        assert not leases, "the lock is still held"
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_lease_survives_a_leader_that_hangs(ensemble: ProxiedEnsemble, open_client: OpenClient) -> None:
    leader = ensemble.leader
    lease = open_client(ensemble.url(session_timeout=40)).lock("a").acquire(timeout=0)
    assert lease is not None

    leader.stop()  # the other members detect this after 50 ticks, which are 10 s
    others = [server for server in ensemble.servers if server is not leader]
    eventually(lambda: "leader" in [server.mode() for server in others])

    eventually(lambda: _renews(lease))
    leader.resume()
    lease.release()


def test_a_lock_works_without_a_minority_of_servers(ensemble: ProxiedEnsemble, open_client: OpenClient) -> None:
    client = open_client(ensemble.url(session_timeout=12))
    lease = client.lock("a").acquire(timeout=0)
    assert lease is not None

    ensemble.followers[0].kill()

    eventually(lambda: _renews(lease))
    other = client.lock("b").acquire(timeout=10)
    assert other is not None
    other.release()
    lease.release()


def test_no_lock_is_granted_and_a_lease_ends_at_its_deadline_without_a_majority(
    ensemble: ProxiedEnsemble, open_client: OpenClient
) -> None:
    url = ensemble.url(session_timeout=3)
    holder, other = open_client(url), open_client(url)
    lease = holder.lock("a").acquire(timeout=0)
    assert lease is not None
    assert other.lock("a").acquire(timeout=0) is None

    for follower in ensemble.followers:
        follower.kill()

    with pytest.raises(BackendError):
        other.lock("b").acquire(timeout=0)
    assert lease.wait_lost(PATIENCE)
    with pytest.raises(BackendError):
        other.lock("a").acquire(timeout=1)
    ensemble.heal()
    eventually(lambda: _takes(other, "a"))
    with pytest.raises(holdfast.LockLost):
        lease.release()


def test_fifty_waiters_are_granted_after_their_server_is_killed_and_restarted(
    own_server: Server, open_client: OpenClient
) -> None:
    url = f"{own_server.url}/crowd?session_timeout=60"  # a busy machine takes long to start the server
    holder, waiter_client = open_client(url), open_client(url)
    lease = holder.lock("a").acquire(timeout=0)
    assert lease is not None
    fences: list[int] = []
    queued: list[str] = []
    waiter_client.subscribe(lambda event: queued.append(event.kind) if event.kind == "queued" else None)
    inside = threading.Lock()
    outages: list[BackendUnavailable] = []

    def take() -> None:
        try:
            with waiter_client.lock("a", timeout=3 * PATIENCE) as own_lease:
                assert inside.acquire(blocking=False), "two holders at the same time"
                fences.append(own_lease.fence)
                inside.release()
        except BackendUnavailable as outage:  # a poll was not answered when the server died, or not in time
            outages.append(outage)
            take()

    threads = [threading.Thread(target=take) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(queued) == WAITERS)

    own_server.kill()
    own_server.start()

    eventually(lambda: _renews(lease))  # after the holder has connected again
    eventually(lambda: _waiters(holder, "a") is not None)
    assert _waiters(holder, "a") == WAITERS, "all waiters kept their places"
    lease.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert fences == sorted(fences)
    assert len(fences) == WAITERS
    assert len(outages) < WAITERS / 2, "most waiters had no unanswered request"


def test_backend_unavailable_is_raised_when_no_server_runs(open_client: OpenClient) -> None:
    client = open_client("zookeeper://127.0.0.1:1,127.0.0.1:2/locks")

    with pytest.raises(holdfast.BackendUnavailable, match=r"127\.0\.0\.1:[12]"):
        client.lock("a").acquire()


def test_a_skipped_reply_closes_the_connection_and_ends_no_lease(server: Server, open_client: OpenClient) -> None:
    with Proxy(server.port) as proxy:
        client = open_client(f"zookeeper://127.0.0.1:{proxy.port}/skipped?session_timeout=40")
        lease = client.lock("a", ttl=40).acquire(timeout=PATIENCE)
        assert lease is not None
        connections = proxy.connections_made

        proxy.lose_next_reply("skipped/b", then="go on")
        other = client.lock("b").acquire(timeout=PATIENCE)

        assert other is not None
        lease.renew()
        assert proxy.connections_made > connections, "the connection on which a reply was skipped is not used again"
        other.release()
        lease.release()


class _waiting:  # noqa: N801  (reads as a function)
    """Starts a waiter. After the block it has acquired and released the lock, and the list has its lease."""

    def __init__(self, client: holdfast.Client, name: str) -> None:
        self._client, self._name = client, name
        self._leases: list[holdfast.Lease] = []
        self._thread = threading.Thread(target=self._take)

    def _take(self) -> None:
        lease = self._client.lock(self._name).acquire(timeout=PATIENCE)
        assert lease is not None
        self._leases.append(lease)

    def __enter__(self) -> list[holdfast.Lease]:
        # `inspect` shows the waiter before the client has its answer, and an outage until then would be an error.
        is_waiting = threading.Event()
        unsubscribe = self._client.subscribe(lambda event: is_waiting.set() if event.kind == "queued" else None)
        self._thread.start()
        assert is_waiting.wait(PATIENCE)
        unsubscribe()
        return self._leases

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE)
        assert self._leases
        self._leases[0].release()


@pytest.mark.parametrize("data", ["none", "old"])
def test_a_client_continues_when_the_servers_have_older_data(
    own_server: Server, open_client: OpenClient, tmp_path: Path, data: str
) -> None:
    url, folder = f"{own_server.url}/{data}", own_server.folder / "data"
    holder, waiter, strict = (
        open_client(url),
        open_client(url),
        holdfast.Client(url, require={"fence": "durable-storage"}),
    )
    if data == "old":
        shutil.copytree(folder, tmp_path / "copy")
    for _ in range(50):
        with strict.lock("b", timeout=PATIENCE):
            pass
    lease = holder.lock("a").acquire(timeout=PATIENCE)
    assert lease is not None
    with _waiting(waiter, "a") as leases:
        own_server.end()
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder) if data == "old" else folder.mkdir()
        own_server.start()

        assert lease.wait_lost(PATIENCE)
        with pytest.raises(holdfast.LockLost, match="older data"):
            lease.check()

    assert leases[0].fence < lease.fence, "fences went back, which has to be reported"
    assert "fences went back" in " ".join(waiter.warnings)
    assert waiter.guarantees.fence is FenceOrder.BEST_EFFORT
    eventually(lambda: _answers(strict))
    with pytest.raises(holdfast.ConfigurationError, match="fence"):
        strict.lock("b").acquire(timeout=PATIENCE)
    assert strict.inspect("b").holders == ()
    strict.close()


def _answers(client: holdfast.Client) -> bool:
    """Whether the client has connected to its servers again."""
    try:
        client.inspect("b")
    except BackendError:
        return False
    return True


def test_a_released_ticket_is_deleted_when_a_restored_copy_has_it_and_its_session(
    own_server: Server, open_client: OpenClient, tmp_path: Path
) -> None:
    folder = own_server.folder / "data"
    with Proxy(own_server.port) as proxy:
        client = open_client(f"zookeeper://127.0.0.1:{proxy.port}/released?session_timeout=40")
        held, released = (client.lock(name).acquire(timeout=PATIENCE) for name in ("held", "released"))
        assert held is not None
        assert released is not None
        shutil.copytree(folder, tmp_path / "copy")
        released.release()
        proxy.refuse()
        own_server.kill()
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)
        own_server.start()
        other = open_client(f"{own_server.url}/released?session_timeout=40")
        # Without these the server would be behind the last transaction that the client saw, and refuse its session.
        for _ in range(20):
            with other.lock("b", timeout=PATIENCE):
                pass
        proxy.heal()

        with other.lock("released", timeout=PATIENCE):
            held.release()  # in the same session, which the servers have continued


def test_a_client_creates_the_root_node_again_when_an_operator_deleted_it(
    server: Server, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    with client.lock("a", timeout=PATIENCE):
        pass

    with kazoo(server.address) as operator:
        eventually(lambda: _deletes(operator, urlsplit(url).path))

    with client.lock("b", timeout=PATIENCE):  # the client has never created the node of this lock
        pass


def _deletes(operator: KazooClient, path: str) -> bool:
    """Whether the node and its children were deleted. The client may create a child at the same time."""
    try:
        operator.delete(path, recursive=True)
    except NotEmptyError:
        return False
    return True


def _renews(lease: holdfast.Lease) -> bool:
    try:
        lease.renew()
    except BackendError:
        return False
    return True


def _waiters(client: holdfast.Client, name: str) -> int | None:
    """The number of waiting tickets. None if the server did not answer in time."""
    try:
        return len(client.inspect(name).waiters)
    except BackendError:
        return None


def _takes(client: holdfast.Client, name: str) -> bool:
    try:
        lease = client.lock(name).acquire(timeout=1)
    except BackendError:
        return False
    if lease is not None:
        lease.release()
    return lease is not None
