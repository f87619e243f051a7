"""What operators and the server itself can do to keys, leases, revisions, and the cluster as a whole."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.core.tickets import Granted
from tests.integration.etcd.crowds import taken, waiting
from tests.integration.etcd.roads import bench, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, running
from tests.support.processes import eventually

Open = Callable[..., holdfast.Client]


@pytest.fixture
def prefix(url: str) -> str:
    return url.partition("prefix=")[2].replace("%2F", "/")


def test_a_holder_whose_lease_is_revoked_learns_it_at_the_next_renewal(own_server: Server, client_of: Open) -> None:
    before = own_server.leases()
    lease = taken(client_of(own_server.url), "a", ttl=3)

    for one in set(own_server.leases()) - set(before):
        own_server.revoke(one)

    assert lease.wait_lost(10)
    with pytest.raises(holdfast.LockLost, match="etcd lease has ended"):
        lease.check()


def test_a_waiter_whose_own_lease_is_revoked_takes_a_new_place_and_is_not_let_in_before_the_holder_leaves(
    own_server: Server, client_of: Open
) -> None:
    holder, waiter = client_of(own_server.url), client_of(own_server.url)
    lease = taken(holder, "a")
    before = own_server.leases()

    with waiting(waiter, "a") as got:
        for own in set(own_server.leases()) - set(before):  # the one of its ttl and the one for waiters
            own_server.revoke(own)
        eventually(lambda: len(holder.inspect("a").waiters) == 1)  # the new place
        assert got == []
        lease.release()

    assert got[0].fence > lease.fence


def test_a_waiter_whose_key_is_deleted_takes_a_new_place(
    server: Server, url: str, prefix: str, client_of: Open
) -> None:
    lease = taken(client_of(url), "a")
    before = set(server.keys(f"{prefix}a/"))

    with waiting(client_of(url), "a"):
        (waiter,) = set(server.keys(f"{prefix}a/")) - before
        server.delete(waiter)
        eventually(lambda: len(server.keys(f"{prefix}a/")) == 2)
        lease.release()


def test_the_lease_s_other_locks_outlast_the_release_of_one(url: str, client_of: Open) -> None:
    client, other = client_of(url), client_of(url)
    leases = [taken(client, name) for name in "abc"]

    leases[1].release()

    assert other.lock("a").acquire(timeout=0) is None
    leases[0].renew()
    leases[0].release()
    leases[2].release()


def test_one_lease_serves_all_locks_of_a_client_with_the_same_ttl(own_server: Server, client_of: Open) -> None:
    client = client_of(own_server.url)
    before = own_server.leases()

    leases = [taken(client, str(number), ttl=20) for number in range(10)]

    assert len(set(own_server.leases()) - set(before)) == 1
    client.close()
    assert set(own_server.leases()) <= set(before)
    assert [lease.held for lease in leases] == [False] * 10


def test_a_lock_that_is_taken_again_and_again_uses_the_same_key(
    server: Server, url: str, prefix: str, client_of: Open
) -> None:
    """Etcd looks at all keys that ever were, until it is compacted: a new one each time makes it slower and slower."""
    client, keys = client_of(url), set()

    for _ in range(10):
        with client.lock("a"), client.lock("b"):
            keys.update(server.keys(prefix))

    assert len(keys) == 2


def test_a_dropped_lease_ends_although_the_client_s_etcd_lease_lives_on(url: str, client_of: Open) -> None:
    client, other = client_of(url), client_of(url)
    kept = taken(client, "kept", ttl=3)

    with pytest.warns(ResourceWarning, match="dropped without release"):
        client.lock("dropped", ttl=3).acquire()
        gc.collect()

    eventually(lambda: other.inspect("dropped").holders == ())

    kept.check()
    kept.release()


def test_revisions_that_were_compacted_away_do_not_stop_who_waits(own_server: Server, client_of: Open) -> None:
    lease = taken(client_of(own_server.url), "a")

    with waiting(client_of(own_server.url), "a") as got:
        for number in range(20):
            own_server.put("something", str(number))
        own_server.call("kv/compaction", revision=str(own_server.revision()), physical=True)
        own_server.kill()  # so that the watch has to be opened anew, at a revision that is gone
        own_server.start()
        lease.release()

    assert got[0].fence > lease.fence


def test_names_with_slashes_are_locks_of_their_own(url: str, client_of: Open) -> None:
    client = client_of(url)
    names = ["a", "a/b", "a/b/c", "/", "//", "a%2Fb", "a%", "%gone"]

    leases = [taken(client, name) for name in names]

    assert [info.name for info in client.locks()] == sorted(names)
    assert [info.name for info in client.locks("a/")] == ["a/b", "a/b/c"]
    for lease in leases:
        lease.release()


@pytest.mark.parametrize(("ours", "theirs"), [("queue", "key"), ("key", "queue")])
def test_two_methods_on_one_name_are_a_clear_error(url: str, client_of: Open, ours: str, theirs: str) -> None:
    lease = taken(client_of(url, method=ours), "a")

    with pytest.raises(holdfast.NameConflict, match="same method"):
        client_of(url, method=theirs).lock("a").acquire(timeout=0)

    assert client_of(url, method=ours).lock("a").acquire(timeout=0) is None
    lease.release()


def test_a_key_of_somebody_else_is_not_a_lock_of_method_key(
    server: Server, url: str, prefix: str, client_of: Open
) -> None:
    server.put(f"{prefix}a", "precious")

    with pytest.raises(holdfast.NameConflict, match="other data"):
        client_of(url, method="key").lock("a").acquire(timeout=0)
    taken(client_of(url), "a").release()  # below it is room for tickets


@pytest.mark.parametrize("method", ["queue", "key"])
def test_an_acquire_that_is_refused_leaves_nothing_in_memory(
    server: Server, url: str, prefix: str, client_of: Open, method: str
) -> None:
    holder, client = client_of(url), client_of(url, method=method)
    leases = [taken(holder, "a"), holder.semaphore("b", 3).acquire()]
    server.put(f"{prefix}c", "precious")
    dead = client_of(f"{server.url.rpartition(':')[0]}:1", method=method)

    def refused() -> None:
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

    refused()
    before = [_in_memory(one) for one in (client, dead)]
    for _ in range(3):
        refused()

    assert [_in_memory(one) for one in (client, dead)] == before
    for lease in leases:
        assert lease is not None
        lease.release()


def test_a_busy_lock_of_method_key_leaves_nothing_in_memory(url: str, client_of: Open) -> None:
    lease, client = taken(client_of(url, method="key"), "a"), client_of(url, method="key")
    assert client.lock("a").acquire(timeout=0) is None
    before = _in_memory(client)

    for _ in range(3):
        assert client.lock("a").acquire(timeout=0) is None

    assert _in_memory(client) == before
    lease.release()


def _in_memory(client: holdfast.Client) -> dict[str, int]:
    """How much the backend remembers, by attribute."""
    backend = vars(client._engine.backend)
    parts = [backend, vars(backend["_wakeups"]), vars(backend["_slots"]) if "_slots" in backend else {}]
    return {name: len(kept) for part in parts for name, kept in part.items() if isinstance(kept, dict | set | list)}


def test_a_full_database_lets_nobody_in_and_keeps_who_is(folder: Path, client_of: Open) -> None:
    with running(Server(folder / "full", options=["--quota-backend-bytes", "2000000"])) as server:
        lease = taken(client_of(server.url), "a")
        for number in range(60):
            server.put(f"filler {number}", "x" * 100_000)

        with pytest.raises(holdfast.BackendUnavailable, match="space"):
            client_of(server.url).lock("b").acquire(timeout=0)
        lease.renew()
        lease.release()

        assert server.keys("holdfast/") == []


def test_a_waiter_whose_turn_comes_while_the_database_is_full_keeps_its_place_until_there_is_space(
    folder: Path,
) -> None:
    with (
        running(Server(folder / "full-in-turn", options=["--quota-backend-bytes", "2000000"])) as server,
        bench(server.url) as holder,
        bench(server.url) as waiter,
    ):
        waiter.backend._leases.waiter_ttl = 60  # type: ignore[attr-defined]  # etcd has it
        first, second = ticket("a"), ticket("a")
        holder.try_acquire(first)
        waiter.try_acquire(second, queue=True)
        place = server.revision()
        for number in range(60):
            server.put(f"filler {number}", "x" * 100_000)
        holder.release([first])

        with pytest.raises(holdfast.BackendUnavailable, match="space"):
            waiter.try_acquire(second, queue=True)
        assert waiter.calls()[-1] == "lease/keepalive"
        server.make_space("filler ")
        granted = waiter.try_acquire(second, queue=True)

        assert isinstance(granted, Granted)
        assert granted.fence == place
        waiter.release([second])


@pytest.mark.parametrize(
    ("token", "noticed"), [("another", "another etcd cluster"), ("etcd-cluster", "revision went back")]
)
def test_a_cluster_that_was_restored_from_a_snapshot_is_refused_and_its_leases_are_lost(
    folder: Path, client_of: Open, token: str, noticed: str
) -> None:
    """With the token that it had before, which is etcd's default, the cluster's id is the same."""
    server = Server(folder / f"restored-{token}")
    with running(server):
        client = client_of(server.url)
        old = taken(client, "a", ttl=4)
        server.save_snapshot()
        for _ in range(5):
            taken(client, "b").release()
        server.restore_snapshot(cluster=token)

        assert old.wait_lost(10)
        with pytest.raises(holdfast.LockLost, match=noticed):
            old.check()
        with pytest.raises(holdfast.ConfigurationError, match=noticed):
            client.lock("b").acquire(timeout=0)
        assert server.keys("holdfast/b") == []


def test_a_client_that_notices_a_restored_snapshot_by_an_acquire_has_lost_its_leases_and_leaves_no_key(
    folder: Path, client_of: Open
) -> None:
    server = Server(folder / "restored")
    with running(server):
        client = client_of(server.url)
        taken(client, "b", ttl=60).release()
        server.save_snapshot()
        held = taken(client, "a", ttl=60)
        server.restore_snapshot()

        with pytest.raises(holdfast.ConfigurationError, match="went back"):
            client.lock("b", ttl=60).acquire()

        assert held.lost
        assert server.keys("holdfast/") == []


def test_a_server_that_is_no_etcd_is_named(client_of: Open) -> None:
    client = client_of(f"etcd://{shared.server()._peer}")

    with pytest.raises(holdfast.BackendError, match=r"no JSON gateway|answered"):
        client.lock("a").acquire(timeout=0)
