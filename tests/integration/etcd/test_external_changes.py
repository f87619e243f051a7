"""Changes of keys, leases, revisions and the whole cluster by operators and by the server itself."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import holdfast
from holdfast.core.tickets import Granted
from tests.integration.conftest import OpenClient
from tests.integration.etcd.harness import harness, ticket
from tests.integration.etcd.helpers import acquired, waiting
from tests.support.etcd import shared
from tests.support.etcd.servers import Server
from tests.support.processes import eventually
from tests.support.server_process import running


@pytest.fixture
def prefix(url: str) -> str:
    return url.partition("prefix=")[2].replace("%2F", "/")


def test_the_next_renewal_reports_the_loss_when_the_etcd_lease_was_revoked(
    own_server: Server, open_client: OpenClient
) -> None:
    before = own_server.leases()
    lease = acquired(open_client(own_server.url), "a", ttl=3)

    for lease_id in set(own_server.leases()) - set(before):
        own_server.revoke(lease_id)

    assert lease.wait_lost(10)
    with pytest.raises(holdfast.LockLost, match="etcd lease has ended"):
        lease.check()


def test_a_waiter_queues_again_when_its_lease_is_revoked_and_is_granted_after_the_release(
    own_server: Server, open_client: OpenClient
) -> None:
    holder, waiter = open_client(own_server.url), open_client(own_server.url)
    lease = acquired(holder, "a")
    before = own_server.leases()

    with waiting(waiter, "a") as leases:
        for lease_id in set(own_server.leases()) - set(before):  # the waiter's etcd leases
            own_server.revoke(lease_id)
        eventually(lambda: len(holder.inspect("a").waiters) == 1)  # the waiter is queued again
        assert leases == []
        lease.release()

    assert leases[0].fence > lease.fence


def test_a_waiter_queues_again_when_its_key_is_deleted(
    server: Server, url: str, prefix: str, open_client: OpenClient
) -> None:
    lease = acquired(open_client(url), "a")
    before = set(server.keys(f"{prefix}a/"))

    with waiting(open_client(url), "a"):
        (waiter,) = set(server.keys(f"{prefix}a/")) - before
        server.delete(waiter)
        eventually(lambda: len(server.keys(f"{prefix}a/")) == 2)
        lease.release()


def test_other_locks_of_a_lease_survive_the_release_of_one(url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(url)
    leases = [acquired(client, name) for name in "abc"]

    leases[1].release()

    assert other.lock("a").acquire(timeout=0) is None
    leases[0].renew()
    leases[0].release()
    leases[2].release()


def test_one_lease_serves_all_locks_of_a_client_with_the_same_ttl(own_server: Server, open_client: OpenClient) -> None:
    client = open_client(own_server.url)
    before = own_server.leases()

    leases = [acquired(client, str(number), ttl=20) for number in range(10)]

    assert len(set(own_server.leases()) - set(before)) == 1
    client.close()
    assert set(own_server.leases()) <= set(before)
    assert [lease.held for lease in leases] == [False] * 10


def test_repeated_acquires_of_a_lock_use_the_same_key(
    server: Server, url: str, prefix: str, open_client: OpenClient
) -> None:
    """Until a compaction, etcd scans all keys that ever existed. New keys for each acquire would make a lock slower."""
    client, keys = open_client(url), set()

    for _ in range(10):
        with client.lock("a"), client.lock("b"):
            keys.update(server.keys(prefix))

    assert len(keys) == 2


def test_a_dropped_lease_ends_while_the_etcd_lease_of_its_client_lives(url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(url)
    kept = acquired(client, "kept", ttl=3)

    with pytest.warns(ResourceWarning, match="dropped without release"):
        client.lock("dropped", ttl=3).acquire()
        gc.collect()

    eventually(lambda: other.inspect("dropped").holders == ())

    kept.check()
    kept.release()


def test_a_waiter_is_granted_when_its_revisions_were_compacted(own_server: Server, open_client: OpenClient) -> None:
    lease = acquired(open_client(own_server.url), "a")

    with waiting(open_client(own_server.url), "a") as leases:
        for number in range(20):
            own_server.put("something", str(number))
        own_server.call("kv/compaction", revision=str(own_server.revision()), physical=True)
        own_server.kill()  # then the client opens the watch again, at a compacted revision
        own_server.start()
        lease.release()

    assert leases[0].fence > lease.fence


def test_names_with_slashes_are_separate_locks(url: str, open_client: OpenClient) -> None:
    client = open_client(url)
    names = ["a", "a/b", "a/b/c", "/", "//", "a%2Fb", "a%", "%gone"]

    leases = [acquired(client, name) for name in names]

    assert [info.name for info in client.locks()] == sorted(names)
    assert [info.name for info in client.locks("a/")] == ["a/b", "a/b/c"]
    for lease in leases:
        lease.release()


@pytest.mark.parametrize(("ours", "theirs"), [("queue", "key"), ("key", "queue")])
def test_two_methods_on_one_name_raise_name_conflict(url: str, open_client: OpenClient, ours: str, theirs: str) -> None:
    lease = acquired(open_client(url, method=ours), "a")

    with pytest.raises(holdfast.NameConflict, match="same method"):
        open_client(url, method=theirs).lock("a").acquire(timeout=0)

    assert open_client(url, method=ours).lock("a").acquire(timeout=0) is None
    lease.release()


def test_a_key_of_another_program_is_not_a_lock_of_method_key(
    server: Server, url: str, prefix: str, open_client: OpenClient
) -> None:
    server.put(f"{prefix}a", "precious")

    with pytest.raises(holdfast.NameConflict, match="other data"):
        open_client(url, method="key").lock("a").acquire(timeout=0)
    acquired(open_client(url), "a").release()  # the key of a ticket is below that key


@pytest.mark.parametrize("method", ["queue", "key"])
def test_a_refused_acquire_leaves_no_state_in_memory(
    server: Server, url: str, prefix: str, open_client: OpenClient, method: str
) -> None:
    holder, client = open_client(url), open_client(url, method=method)
    leases = [acquired(holder, "a"), holder.semaphore("b", 3).acquire()]
    server.put(f"{prefix}c", "precious")
    dead = open_client(f"{server.url.rpartition(':')[0]}:1", method=method)

    def acquire_refused() -> None:
        if method == "queue":
            assert client.lock("a").acquire(timeout=0) is None
            with pytest.raises(holdfast.LimitConflict):
                client.semaphore("b", 4).acquire(timeout=5)
        else:
            for name in "ac":
                with pytest.raises(holdfast.NameConflict):
                    client.lock(name).acquire(timeout=5)
        with pytest.raises(holdfast.BackendUnavailable):
            dead.lock("a").acquire(timeout=5)

    acquire_refused()
    before = [_in_memory(each) for each in (client, dead)]
    for _ in range(3):
        acquire_refused()

    assert [_in_memory(each) for each in (client, dead)] == before
    for lease in leases:
        assert lease is not None
        lease.release()


def test_a_busy_lock_of_method_key_leaves_no_state_in_memory(url: str, open_client: OpenClient) -> None:
    lease, client = acquired(open_client(url, method="key"), "a"), open_client(url, method="key")
    assert client.lock("a").acquire(timeout=0) is None
    before = _in_memory(client)

    for _ in range(3):
        assert client.lock("a").acquire(timeout=0) is None

    assert _in_memory(client) == before
    lease.release()


def _in_memory(client: holdfast.Client) -> dict[str, int]:
    """The number of items in each collection of the backend, by attribute."""
    backend = vars(client._engine.backend)
    objects = [backend, vars(backend["_wakeups"]), vars(backend["_slots"]) if "_slots" in backend else {}]
    return {
        name: len(value)
        for attributes in objects
        for name, value in attributes.items()
        if isinstance(value, dict | set | list)
    }


def test_a_full_database_grants_no_lock_and_keeps_holders(folder: Path, open_client: OpenClient) -> None:
    with running(Server(folder / "full", options=["--quota-backend-bytes", "2000000"])) as server:
        lease = acquired(open_client(server.url), "a")
        for number in range(60):
            server.put(f"filler {number}", "x" * 100_000)

        with pytest.raises(holdfast.BackendUnavailable, match="space"):
            open_client(server.url).lock("b").acquire(timeout=0)
        lease.renew()
        lease.release()

        assert server.keys("holdfast/") == []


def test_the_next_waiter_keeps_its_place_while_the_database_is_full(folder: Path) -> None:
    with (
        running(Server(folder / "full-in-turn", options=["--quota-backend-bytes", "2000000"])) as server,
        harness(server.url) as holder,
        harness(server.url) as waiter,
    ):
        waiter.backend._leases.waiter_ttl = 60  # type: ignore[attr-defined]  # only etcd has it
        first, second = ticket("a"), ticket("a")
        holder.try_acquire(first)
        waiter.try_acquire(second, queue=True)
        revision = server.revision()
        for number in range(60):
            server.put(f"filler {number}", "x" * 100_000)
        holder.release([first])

        with pytest.raises(holdfast.BackendUnavailable, match="space"):
            waiter.try_acquire(second, queue=True)
        assert waiter.calls()[-1] == "lease/keepalive"
        server.make_space("filler ")
        granted = waiter.try_acquire(second, queue=True)

        assert isinstance(granted, Granted)
        assert granted.fence == revision
        waiter.release([second])


@pytest.mark.parametrize(
    ("token", "noticed"), [("another", "another etcd cluster"), ("etcd-cluster", "revision went back")]
)
def test_a_restored_cluster_is_refused_and_leases_are_lost(
    folder: Path, open_client: OpenClient, token: str, noticed: str
) -> None:
    """With the same token as before, which is the default of etcd, the id of the cluster does not change."""
    server = Server(folder / f"restored-{token}")
    with running(server):
        client = open_client(server.url)
        old = acquired(client, "a", ttl=4)
        server.save_snapshot()
        for _ in range(5):
            acquired(client, "b").release()
        server.restore_snapshot(cluster=token)

        assert old.wait_lost(10)
        with pytest.raises(holdfast.LockLost, match=noticed):
            old.check()
        with pytest.raises(holdfast.ConfigurationError, match=noticed):
            client.lock("b").acquire(timeout=0)
        assert server.keys("holdfast/b") == []


def test_an_acquire_on_a_restored_cluster_loses_leases_and_leaves_no_key(folder: Path, open_client: OpenClient) -> None:
    server = Server(folder / "restored")
    with running(server):
        client = open_client(server.url)
        acquired(client, "b", ttl=60).release()
        server.save_snapshot()
        held = acquired(client, "a", ttl=60)
        server.restore_snapshot()

        with pytest.raises(holdfast.ConfigurationError, match="went back"):
            client.lock("b", ttl=60).acquire()

        assert held.lost
        assert server.keys("holdfast/") == []


def test_an_error_names_a_server_that_is_not_etcd(open_client: OpenClient) -> None:
    client = open_client(f"etcd://{shared.server().peer_address}")

    with pytest.raises(holdfast.BackendError, match=r"no JSON gateway|answered"):
        client.lock("a").acquire(timeout=0)
