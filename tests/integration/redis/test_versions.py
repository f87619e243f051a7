"""Hazard: a feature works on one version or product of the server only, or only over one kind of socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, take
from tests.support.processes import eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.servers import Server
from tests.support.server_process import running

METHODS = ["queue", "setnx", "getset"]


@pytest.fixture
def each_server(every_binary: Binary, tmp_path: Path) -> Iterator[Server]:
    with running(Server(every_binary, tmp_path, options=["--unixsocket", str(tmp_path / "socket")])) as server:
        yield server


@pytest.mark.parametrize("method", METHODS)
def test_threads_acquire_wait_and_hand_over_and_leave_no_keys(
    method: str, each_server: Server, open_client: OpenClient
) -> None:
    url = f"{each_server.url}?method={method}"
    holder, waiter = open_client(url), open_client(url)

    first = take(holder.lock("one"))
    busy = waiter.lock("one").acquire(timeout=0)
    pending = acquiring(waiter.lock("one"))
    first.renew()
    first.release()
    second = pending.result()

    assert busy is None
    assert second.fence > first.fence
    second.release()
    assert_free_and_clean(each_server, "one")


@pytest.mark.parametrize("method", METHODS)
async def test_tasks_acquire_wait_and_hand_over_and_leave_no_keys(method: str, each_server: Server) -> None:
    url = f"{each_server.url}?method={method}"
    async with holdfast.AsyncClient(url) as holder, holdfast.AsyncClient(url) as waiter:
        first = await holder.lock("one").acquire()
        assert first is not None
        busy = await waiter.lock("one").acquire(timeout=0)
        await first.renew()
        await first.release()
        async with waiter.lock("one", timeout=20) as second:
            assert second.fence > first.fence

    assert busy is None
    assert_free_and_clean(each_server, "one")


def test_readers_and_permits_share_on_every_version(each_server: Server, open_client: OpenClient) -> None:
    some, other = open_client(each_server.url), open_client(each_server.url)

    readers = [take(client.rwlock("book").read()) for client in (some, other)]
    permits = [take(client.semaphore("permits", limit=2)) for client in (some, other)]
    writer = acquiring(other.rwlock("book").write())
    await_waiters(some, "book", 1)
    late_reader = open_client(each_server.url).rwlock("book").read().acquire(timeout=0)
    third_permit = some.semaphore("permits", limit=2).acquire(timeout=0)

    assert late_reader is None, "a reader overtook a waiting writer"
    assert third_permit is None
    for lease in (*readers, *permits):
        lease.release()
    assert writer.result().fence > max(lease.fence for lease in readers)
    writer.result().release()
    assert_free_and_clean(each_server, "book")
    assert_free_and_clean(each_server, "permits")


@pytest.mark.parametrize("method", METHODS)
def test_lock_all_and_once_per_work_on_every_version(method: str, each_server: Server, open_client: OpenClient) -> None:
    some, other = (open_client(f"{each_server.url}?method={method}") for _ in range(2))

    with some.lock_all(["a", "b", "c"], timeout=20) as lease:
        assert other.lock_all(["b", "d"]).acquire(timeout=0) is None
        lease.renew()
    runs = [client.once_per("1h", name="hourly")(lambda: "ran")() for client in (some, other)]
    each_server.call("LPUSH", "holdfast:b", "not a lock")

    assert runs == ["ran", None]
    with pytest.raises(holdfast.NameConflict, match="lock 'b'"):
        some.lock_all(["a", "b", "c"], timeout=20).acquire()
    eventually(lambda: "holdfast:a" not in each_server.all_keys())


def test_owners_share_on_every_version(each_server: Server, open_client: OpenClient) -> None:
    some, other = open_client(each_server.url), open_client(each_server.url)

    held = take(some.lock("one"))
    pending = [acquiring(client.lock("one", owner="job")) for client in (some, other)]
    await_waiters(some, "one", 2)
    held.release()
    leases = [future.result() for future in pending]

    assert leases[0].fence == leases[1].fence > held.fence
    assert some.lock("one", owner="another").acquire(timeout=0) is None
    for lease in leases:
        lease.renew()
        lease.release()
    assert_free_and_clean(each_server, "one")


def test_a_unix_socket_and_a_port_lead_to_the_same_locks(
    each_server: Server, tmp_path: Path, open_client: OpenClient
) -> None:
    near = open_client(f"redis+unix://{tmp_path}/socket?db=0")
    far = open_client(each_server.url)

    lease = take(near.lock("one"))

    assert far.lock("one").acquire(timeout=0) is None
    lease.release()
    take(far.lock("one")).release()


def test_databases_and_prefixes_keep_locks_apart(server: Server, open_client: OpenClient) -> None:
    clients = [
        open_client(server.url),
        open_client(f"redis://{server.address}/1"),
        open_client(f"{server.url}?prefix=mine:"),
    ]

    leases = [take(client.lock("one"), timeout=0) for client in clients]

    assert len(leases) == 3
    assert {"holdfast:one", "mine:one"} <= server.all_keys()
    for lease in leases:
        lease.release()


def test_a_refused_script_is_not_an_unknown_outcome_on_any_version(
    each_server: Server, open_client: OpenClient
) -> None:
    """The text of an error inside a script differs: 6.2 wraps the error, 7.0 and Valkey each add their own words."""
    client = open_client(each_server.url)
    take(client.lock("one")).release()

    for setting, value, default in (("min-replicas-to-write", "1", "0"), ("maxmemory", "1", "0")):
        each_server.call("CONFIG", "SET", setting, value)
        with pytest.raises(holdfast.BackendUnavailable):
            client.lock("one").acquire(timeout=0)
        with pytest.raises(holdfast.BackendUnavailable):
            client.lock_all(["one", "two"]).acquire(timeout=0)
        each_server.call("CONFIG", "SET", setting, default)
    each_server.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(holdfast.BackendUnavailable, match="replica"):
        client.lock("one").acquire(timeout=0)
    each_server.call("REPLICAOF", "NO", "ONE")
    each_server.call("LPUSH", "holdfast:list", "x")
    with pytest.raises(holdfast.NameConflict):
        client.lock("list").acquire(timeout=0)

    take(client.lock("one"), timeout=0).release()
