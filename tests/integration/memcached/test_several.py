"""Hazard: holders that overlap, names on two servers, or a dead server that ends locks of the others."""

from __future__ import annotations

import threading
import time

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.memcached.conftest import StartServer
from tests.integration.memcached.helpers import item, take
from tests.support.memcached.servers import Server
from tests.support.processes import WORKER, WorkerPool, eventually

NAMES = [
    "plain",
    "with blank",
    "trailing ",
    "a/b",
    "50%25",
    "nul\0",
    "line\r\nbreak",
    "émoji 🔒",
    "x" * 512,
    "é" * 512,
    "%sha256:" + "0" * 64,
]


def test_names_with_any_characters_are_exact(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)

    leases = [take(client, name) for name in NAMES]

    assert sorted(info.name for info in client.locks()) == sorted(NAMES)
    for name, lease in zip(NAMES, leases, strict=True):
        assert [holder.fence for holder in client.inspect(name).holders] == [lease.fence]
        lease.release()
    assert client.locks() == []


def test_threads_with_a_client_each_exclude_each_other(server: Server) -> None:
    inside: list[str] = []
    fences: list[int] = []
    until = time.monotonic() + 2.0

    def work(name: str) -> None:
        with holdfast.Client(server.url) as client:
            while time.monotonic() < until:
                with client.lock("a", ttl=10, timeout=30) as lease:
                    inside.append(name)
                    assert inside == [name]
                    fences.append(lease.fence)
                    inside.remove(name)

    threads = [threading.Thread(target=work, args=(f"{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(fences) > 20
    assert fences == sorted(set(fences)), "fences do not grow"


def test_a_lock_is_free_after_the_ttl_when_its_holder_was_killed(server: Server, open_client: OpenClient) -> None:
    with WorkerPool(WORKER) as pool:
        worker = pool.start(server.url)
        fence = worker.call("acquire", lock="a", ttl=1)["fence"]
        worker.kill()

        lease = open_client(server.url).lock("a", ttl=10).acquire(timeout=20)

    assert lease is not None
    assert lease.fence > fence
    lease.release()


def test_an_item_of_another_program_blocks_the_lock_and_is_not_changed(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    server.call(b"ms holdfast:a 5 ME T60\r\nother\r\n")

    with pytest.raises(holdfast.AcquireTimeout, match="another program"), client.lock("a", timeout=0.3):
        pass

    (holder,) = client.inspect("a").holders
    assert (holder.fence, holder.agent) == (0, "another program")
    assert not client.break_lock("a", fence=0)
    assert item(server, "a").value == b"other"


# ── several servers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_name_has_the_same_server_for_all_clients(start_server: StartServer, open_client: OpenClient) -> None:
    servers = [start_server() for _ in range(3)]
    addresses = [server.address for server in servers]
    client = open_client("memcached://" + ",".join(addresses))
    other = open_client("memcached://" + ",".join(reversed(addresses)))
    names = [f"name-{number}" for number in range(60)]

    leases = [take(client, name, ttl=30) for name in names]

    assert all(other.lock(name).acquire(timeout=0) is None for name in names)
    counts = [int(server.stats()["curr_items"]) for server in servers]
    assert sum(counts) == len(names)
    assert min(counts) > 5, "the names are spread over the servers"
    assert [info.name for info in other.locks(prefix="name-")] == sorted(names)
    for lease in leases:
        lease.release()
    assert other.locks() == []


async def test_a_dead_server_ends_only_its_own_locks(start_server: StartServer) -> None:
    servers = [start_server() for _ in range(3)]
    async with holdfast.AsyncClient("memcached://" + ",".join(server.address for server in servers)) as client:
        leases = {f"name-{number}": await client.lock(f"name-{number}", ttl=4).acquire() for number in range(30)}
        lost = {name for name in leases if item(servers[0], name).code == "VA"}

        servers[0].kill()
        for name, lease in leases.items():
            assert lease is not None
            if name in lost:
                assert await lease.wait_lost(30)
        assert lost
        assert {name for name, lease in leases.items() if lease is not None and lease.lost} == lost
        for name in leases.keys() - lost:
            lease = leases[name]
            assert lease is not None
            await lease.release()


def test_a_silent_server_ends_only_its_own_locks_for_threads(
    start_server: StartServer, open_client: OpenClient
) -> None:
    servers = [start_server() for _ in range(3)]
    client = open_client("memcached://" + ",".join(server.address for server in servers))
    leases = {f"name-{number}": take(client, f"name-{number}", ttl=6) for number in range(30)}
    lost = {name for name in leases if item(servers[0], name).code == "VA"}

    servers[0].stop()  # silent, which is harder to detect than dead
    eventually(lambda: {name for name, lease in leases.items() if lease.lost} == lost)
    time.sleep(2.5)  # so that the others are renewed
    servers[0].resume()

    assert {name for name, lease in leases.items() if lease.lost} == lost
    for name in leases.keys() - lost:
        leases[name].release()
