"""Hazard: an error reply of the server reaches the user in the words of a driver, cannot be understood, or looks like
"busy".
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Callable

import pytest

import holdfast
from holdfast.backends.redis.protocol.keys import queue_keys
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, in_background, take
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import Binary
from tests.support.redis.resp import ServerError
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Pair, bus_option, cluster_ports


def refusal(client: holdfast.Client) -> holdfast.HoldfastError:
    """The error of an acquire with timeout=0."""
    with pytest.raises(holdfast.HoldfastError) as refused:
        client.lock("one").acquire(timeout=0)
    assert not isinstance(refused.value, holdfast.AcquireTimeout)
    return refused.value


async def async_refusal(url: str) -> holdfast.HoldfastError:
    async with holdfast.AsyncClient(url) as client:
        with pytest.raises(holdfast.HoldfastError) as refused:
            await client.lock("one").acquire(timeout=0)
    return refused.value


def test_a_replica_is_refused(pair: Pair, open_client: OpenClient) -> None:
    error = refusal(open_client(pair.replica.url))

    assert isinstance(error, holdfast.BackendUnavailable | holdfast.ConfigurationError)
    assert "replica" in str(error)
    assert pair.replica.address in str(error)


async def test_a_replica_is_refused_by_tasks(pair: Pair) -> None:
    assert "replica" in str(await async_refusal(pair.replica.url))


def test_a_renewal_reports_an_outage_and_no_loss_when_the_primary_has_become_a_replica(
    pair: Pair, open_client: OpenClient
) -> None:
    client = open_client(pair.primary.url)
    lease = take(client.lock("one", ttl=30))
    # The former primary copies the data of its replica. Without the lease in them, the renewal would report a loss.
    eventually(lambda: pair.replica.call("DBSIZE") == pair.primary.call("DBSIZE"))

    pair.primary.call("REPLICAOF", "127.0.0.1", pair.replica.port)

    with pytest.raises(holdfast.BackendUnavailable, match="replica"):
        lease.renew()
    assert lease.held
    pair.primary.call("REPLICAOF", "NO", "ONE")


def test_a_server_is_unavailable_while_it_loads_its_data(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server()
    if server.binary.version < (7,):
        pytest.skip("Redis 6.2 does not answer at all while it loads so little data")
    server.call("EVAL", "for i = 1, 5000 do redis.call('SET', 'k' .. i, string.rep('x', 100)) end", 0)
    server.call("SAVE")
    server.kill()
    server.options += ["--key-load-delay", "400", "--loading-process-events-interval-bytes", "1024"]
    server.spawn()
    eventually(lambda: _answers_loading(server))

    client = open_client(server.url)
    error = refusal(client)
    server.await_answer()

    assert isinstance(error, holdfast.BackendUnavailable)
    assert "load" in str(error).lower()
    take(client.lock("one"), timeout=0).release()


def test_a_server_that_cannot_write_to_its_disk_raises(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server()
    server.call("CONFIG", "SET", "save", "3600 1")
    client = open_client(server.url)
    lease = take(client.lock("held"))
    shutil.rmtree(server.folder)
    server.call("BGSAVE")
    eventually(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")

    error = refusal(open_client(server.url))

    assert isinstance(error, holdfast.BackendUnavailable)
    assert "disk" in str(error).lower()
    server.folder.mkdir()
    server.call("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    lease.release()


def test_a_primary_without_its_required_replicas_raises(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server("--min-replicas-to-write", "1")

    error = refusal(open_client(server.url))

    assert isinstance(error, holdfast.BackendUnavailable)
    assert "replicas" in str(error)


def test_a_server_without_memory_grants_no_locks_but_releases_them(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server()
    client, other = open_client(server.url), open_client(server.url)
    lease = take(client.lock("held"))
    pending = acquiring(other.lock("held"))
    await_waiters(client, "held", 1)
    server.call("CONFIG", "SET", "maxmemory", "1")

    error = refusal(client)
    lease.renew()
    # A renewal writes the index only once a minute. A time in the past in the key makes the next renewal write it.
    nonce, fence, since, _, *about = server.call("GET", "holdfast:held").split("\n")
    server.call("CONFIG", "SET", "maxmemory", "0")
    server.call("SET", "holdfast:held", "\n".join([nonce, fence, since, "1", *about]), "KEEPTTL")
    server.call("CONFIG", "SET", "maxmemory", "1")
    lease.renew()
    lease.release()

    assert isinstance(error, holdfast.BackendUnavailable)
    assert "memory" in str(error)
    server.call("CONFIG", "SET", "maxmemory", "0")  # the release may have granted the waiter, or the waiter has to poll
    pending.result().release()
    assert_free_and_clean(server, "held")


def test_a_release_succeeds_without_memory_while_callers_of_the_client_wait(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server()
    client = open_client(server.url)
    local = client._engine.local
    assert local is not None
    lease = take(client.lock("one"))
    waiting = acquiring(client.lock("one"))
    eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == 1)

    server.call("CONFIG", "SET", "maxmemory", "1")
    lease.release()

    server.call("CONFIG", "SET", "maxmemory", "0")
    waiting.result(PATIENCE).release()
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_a_server_that_may_evict_locks_is_refused_by_default(
    policy: str, start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("--maxmemory-policy", policy, "--maxmemory", "100mb")

    with pytest.raises(holdfast.ConfigurationError, match=f"{policy}.*eviction=allow"):
        open_client(server.url).lock("one").acquire(timeout=0)

    allowed = open_client(f"{server.url}?eviction=allow")
    take(allowed.lock("one"), timeout=0).release()
    assert allowed.guarantees.exclusion.value == "cache"


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_a_program_that_requires_more_than_a_cache_is_refused_by_the_first_acquire(
    method: str, start_server: StartServer
) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    url = f"{server.url}?eviction=allow&method={method}"

    with holdfast.Client(url, require={"exclusion": "best-effort"}) as client:
        for _ in range(2):
            with pytest.raises(holdfast.ConfigurationError, match="exclusion is cache, not best-effort or better"):
                client.lock("one").acquire()
            assert server.call("EXISTS", "holdfast:one") == 0


async def test_a_server_that_may_evict_locks_is_refused_by_tasks(start_server: StartServer) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")

    error = await async_refusal(server.url)

    assert isinstance(error, holdfast.ConfigurationError)
    assert "eviction=allow" in str(error)


def test_a_cluster_node_without_slots_is_refused(
    binary: Binary, start_server: StartServer, open_client: OpenClient
) -> None:
    ((port, bus),) = cluster_ports(binary, 1)
    server = start_server("--cluster-enabled", "yes", *bus_option(binary, bus), port=port)

    for url in (server.url, f"redis+cluster://{server.address}"):
        error = refusal(open_client(url))

        assert isinstance(error, holdfast.BackendUnavailable | holdfast.ConfigurationError)
        assert "luster" in str(error)


def test_the_error_says_that_a_server_is_not_a_cluster(server: Server, open_client: OpenClient) -> None:
    error = refusal(open_client(f"redis+cluster://{server.address}"))

    assert isinstance(error, holdfast.BackendUnavailable | holdfast.ConfigurationError)
    assert "luster" in str(error)


def test_the_error_for_a_cluster_behind_a_plain_url_names_the_right_url(
    shared_cluster: Cluster, open_client: OpenClient
) -> None:
    owner = shared_cluster.owner(shared_cluster.slot("holdfast:one"))
    wrong = next(server for server in shared_cluster.servers[:3] if server is not owner)

    error = refusal(open_client(wrong.url))

    assert "redis+cluster://" in str(error)


@pytest.mark.parametrize(
    "occupy",
    [
        lambda server: server.call("LPUSH", "holdfast:one", "x"),
        lambda server: server.call("HSET", "holdfast:one", "x", "y"),
        lambda server: server.call("ZADD", "holdfast:one", 1, "x"),
        lambda server: server.call("SADD", "holdfast:one", "x"),
    ],
    ids=["list", "hash", "sorted set", "set"],
)
@pytest.mark.parametrize("method", ["queue", "setnx", "getset"])
def test_a_key_of_another_type_raises_name_conflict_and_is_not_changed(
    method: str, occupy: Callable[[Server], object], server: Server, open_client: OpenClient
) -> None:
    occupy(server)
    before = server.call("DUMP", "holdfast:one")

    error = refusal(open_client(f"{server.url}?method={method}"))

    assert isinstance(error, holdfast.NameConflict)
    assert error.lock == "one"
    assert server.call("DUMP", "holdfast:one") == before


def test_a_lock_in_use_with_another_method_raises_name_conflict(server: Server, open_client: OpenClient) -> None:
    lease = take(open_client(server.url).lock("one"))

    error = refusal(open_client(f"{server.url}?method=getset"))

    assert isinstance(error, holdfast.ConfigurationError)
    assert "method" in str(error)
    lease.release()


def test_a_server_that_runs_a_long_script_is_unavailable(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server("--lua-time-limit", "100")
    client = open_client(server.url)
    take(client.lock("one")).release()
    with server.connect(timeout=60) as connection:
        stuck = in_background(lambda: connection.call("EVAL", "while true do end", 0))
        eventually(lambda: _answers_busy(server))

        error = refusal(client)
        server.call("SCRIPT", "KILL")

        assert isinstance(error, holdfast.BackendError)
        assert "script" in str(error)
        with pytest.raises(ServerError):
            stuck.result(timeout=20)
    take(client.lock("one"), timeout=5).release()


def test_a_server_without_room_for_another_connection_is_unavailable(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("--maxclients", "1")
    with contextlib.ExitStack() as stack:
        # The server may still count the closed connection of the check whether it runs.
        eventually(lambda: _has_room(server, stack))

        error = refusal(open_client(server.url))

    assert isinstance(error, holdfast.BackendUnavailable)  # the server's error may be lost with the connection


def test_a_server_that_is_not_redis_gives_a_holdfast_error(open_client: OpenClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        error = refusal(open_client(f"redis://127.0.0.1:{listener.getsockname()[1]}/0?io_timeout=2"))

    assert isinstance(error, holdfast.BackendError)


def _has_room(server: Server, stack: contextlib.ExitStack) -> bool:
    """Whether the server accepts a connection, which then stays open."""
    with contextlib.ExitStack() as trying:
        try:
            trying.enter_context(server.connect()).call("PING")
        except (OSError, ServerError):
            return False
        stack.push(trying.pop_all())
    return True


def _answers_loading(server: Server) -> bool:
    try:
        server.call("PING")
    except ServerError as error:
        return error.code == "LOADING"
    except OSError:
        return False
    return False


def _answers_busy(server: Server) -> bool:
    try:
        server.call("PING")
    except ServerError as error:
        return error.code == "BUSY"
    return False


DAMAGED = {
    "a pid that is not a number": '5\n9e15\n0\nPUBLISH\nch\nagent\n{"who": {"host": "h", "pid": "abc"}, "meta": {}}',
    "an infinite pid": '5\n9e15\n0\nPUBLISH\nch\nagent\n{"who": {"host": "h", "pid": Infinity}, "meta": {}}',
    "nested too deep": "5\n5\n0\nPUBLISH\nch\nagent\n" + 100_000 * "[",
    "too short": " garbage",
    "no number": "x\ny\nz\n\n\n\n",
    "empty": "",
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_shown_as_far_as_it_can_be_read(line: str, server: Server, open_client: OpenClient) -> None:
    client, keys = open_client(server.url), queue_keys("holdfast:", "bad", per_slot=False)
    server.call("SET", keys.lock, f"holdfast:queue2:n1\n{line}", "PX", 60_000)
    server.call("ZADD", keys.locks, 9e15, keys.lock)
    server.call("HSET", keys.waiters, "n2", f"x\n{line}", "weird", "gone")
    server.call("RPUSH", keys.queue, "n2", "weird", "without an entry")

    assert client.inspect("bad").holders
    assert [info.name for info in client.locks()] == ["bad"]
    assert client.lock("bad").acquire(timeout=0.1) is None
    server.call("DEL", keys.lock)
    lease = client.lock("bad").acquire(timeout=PATIENCE)
    assert lease is not None
    lease.release()
