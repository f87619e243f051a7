"""Hazard: faults that the tests in this folder inject do not happen, so that the tests prove nothing.

No lock is used here: only the servers, the proxy and the clock are checked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.redis.conftest import StartServer
from tests.support.processes import eventually, now
from tests.support.redis.binaries import Binary
from tests.support.redis.clock import WallClock
from tests.support.redis.proxy import Proxy
from tests.support.redis.resp import Connection, ServerError
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Pair
from tests.support.server_process import free_ports


def test_a_lost_reply_belongs_to_a_request_that_was_executed(server: Server, proxy: Proxy) -> None:
    with Connection(proxy.port) as connection:
        assert connection.call("PING") == "PONG"

        proxy.lose_next_reply("mine")
        with pytest.raises(ConnectionError):
            connection.call("SET", "mine", 1)

    proxy.await_loss()
    assert server.all_keys() == {"mine"}


def test_a_lost_request_is_not_executed(server: Server, proxy: Proxy) -> None:
    with Connection(proxy.port) as connection:
        proxy.lose_next_request("mine")
        assert connection.call("SET", "other", 1) == "OK"
        with pytest.raises(ConnectionError):
            connection.call("SET", "mine", 1)

    assert server.all_keys() == {"other"}


def test_a_hanging_proxy_hangs_until_the_client_times_out(server: Server, proxy: Proxy) -> None:
    proxy.lose_next_reply("mine", then="hang")
    with Connection(proxy.port, timeout=0.3) as connection, pytest.raises(TimeoutError):
        connection.call("SET", "mine", 1)

    assert server.all_keys() == {"mine"}
    with Connection(proxy.port) as connection:
        assert connection.call("PING") == "PONG"


def test_a_proxy_cuts_refuses_heals_delays_and_redirects(
    server: Server, proxy: Proxy, start_server: StartServer
) -> None:
    with Connection(proxy.port) as connection:
        connection.call("PING")
        proxy.cut()
        with pytest.raises(ConnectionError):
            connection.call("PING")

    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        Connection(proxy.port)
    proxy.heal()

    proxy.delay(0.1)
    with Connection(proxy.port) as connection:
        began = now()
        connection.call("SET", "here", 1)
        assert now() - began >= 0.2
    proxy.heal()

    proxy.lead_to(start_server().port)
    with Connection(proxy.port) as connection:
        assert connection.call("EXISTS", "here") == 0


def test_a_step_of_the_wall_clock_expires_a_key_early(start_server: StartServer, tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clock")
    server = start_server(environment=clock.environment)
    server.call("SET", "brief", 1, "PX", 10_000)
    server.call("SET", "long", 1, "PX", 100_000)

    clock.step(20)
    eventually(lambda: server.all_keys() == {"long"}, within=5)  # Valkey reads the clock a few times a second
    ttl_ms = server.call("PTTL", "long")
    clock.step(-1000)

    assert ttl_ms <= 80_000
    eventually(lambda: server.call("PTTL", "long") > 1_000_000, within=5)


def test_a_restarted_server_has_its_data_on_disk(start_server: StartServer) -> None:
    durable, volatile = start_server("--appendonly", "yes", "--appendfsync", "always"), start_server()

    for server in (durable, volatile):
        server.call("SET", "key", 1)
        server.restart()

    assert durable.all_keys() == {"key"}
    assert volatile.all_keys() == set()
    durable.kill()
    durable.wipe()
    durable.start()
    assert durable.all_keys() == set()


def test_a_stopped_server_accepts_requests_and_replies_when_it_is_resumed(start_server: StartServer) -> None:
    server = start_server()
    with server.connect(timeout=0.3) as connection:
        server.stop()
        with pytest.raises(TimeoutError):
            connection.call("SET", "key", 1)
        server.resume()

    eventually(lambda: server.all_keys() == {"key"})


def test_a_replica_behind_a_losing_link_misses_writes_and_becomes_a_primary_without_them(
    binary: Binary, tmp_path: Path
) -> None:
    ports = free_ports(2)
    with Proxy(ports[0]) as link, Pair(binary, tmp_path, ports=ports, link=link.port) as pair:
        pair.primary.call("SET", "seen", 1)
        eventually(lambda: pair.replica.all_keys() == {"seen"})

        link.lose_replies()
        pair.primary.call("SET", "missed", 1)
        pair.primary.kill()
        pair.replica.call("REPLICAOF", "NO", "ONE")

        assert pair.replica.all_keys() == {"seen"}


def test_a_slot_moves_in_steps_that_the_servers_report(shared_cluster: Cluster) -> None:
    slot = shared_cluster.slot("{steps}a")
    source = shared_cluster.owner(slot)
    target = next(server for server in shared_cluster.servers[:3] if server is not source)
    for key in ("{steps}a", "{steps}b"):
        source.call("SET", key, 1)

    shared_cluster.begin_move(slot, target)
    source.call("MIGRATE", "127.0.0.1", target.port, "{steps}a", 0, 5000)
    with pytest.raises(ServerError, match="ASK"):
        source.call("GET", "{steps}a")
    with pytest.raises(ServerError, match=r"TRYAGAIN|ASK"):  # 6.2 answers ASK before it checks the other keys
        source.call("MGET", "{steps}a", "{steps}b")
    shared_cluster.move_keys(slot, source, target)
    shared_cluster.end_move(slot, target)

    with pytest.raises(ServerError, match="MOVED"):
        source.call("GET", "{steps}a")
    assert target.call("DEL", "{steps}a", "{steps}b") == 2
