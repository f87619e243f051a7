"""Hazard: several locks take a round trip each, or a script for several acquires some without a client."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.backends.redis.protocol.keys import SCRIPT_LOCKS_MAX
from holdfast.core.tickets import Granted, Live, Waiting
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean, lock_keys, take
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Watched

FIFTY = [f"many-{number:02}" for number in range(50)]


def locks_taken(*servers: Server, prefix: str = "holdfast:") -> set[str]:
    """The names of the locks that are held."""
    return {
        key[len(prefix) :] for server in servers for key in lock_keys(server) if server.call("TYPE", key) == "string"
    }


def scripts_run(server: Server) -> int:
    return int(server.info("commandstats").get("cmdstat_evalsha", "calls=0").partition("calls=")[2].partition(",")[0])


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_fifty_locks_are_acquired_renewed_and_released_in_one_round_trip_each(
    method: str, server: Server, proxy: Proxy
) -> None:
    backend = Verbs(f"{proxy.url}?method={method}")
    for names in (["warm-up"], ["warm-up", "more"]):  # connections are open and scripts are known
        tickets = [backend.ticket(name) for name in names]
        backend.try_acquire_all(tickets)
        backend.renew(*tickets)
        backend.release(*tickets)
    tickets = [backend.ticket(name) for name in FIFTY]

    before = proxy.round_trips
    outcomes = backend.try_acquire_all(tickets)
    assert proxy.round_trips == before + 1
    assert locks_taken(server) == set(FIFTY)
    renewed = backend.renew(*tickets)
    assert proxy.round_trips == before + 2
    released = backend.release(*tickets)
    assert proxy.round_trips == before + 3

    assert [type(outcome) for outcome in outcomes] == [Granted] * 50
    assert [type(outcome) for outcome in renewed] == [Live] * 50
    assert released == [True] * 50
    assert locks_taken(server) == set()
    backend.close()


def test_lock_all_of_fifty_takes_two_round_trips(server: Server, proxy: Proxy, open_client: OpenClient) -> None:
    client = open_client(proxy.url)
    with client.lock_all(["warm-up", "more"]):
        pass

    before = proxy.round_trips
    with client.lock_all(FIFTY) as lease:
        assert proxy.round_trips == before + 1
        assert set(lease.fences) == locks_taken(server) == set(FIFTY)

    assert proxy.round_trips == before + 2
    assert locks_taken(server) == set()


async def test_lock_all_of_fifty_takes_two_round_trips_with_tasks(server: Server, proxy: Proxy) -> None:
    async with holdfast.AsyncClient(proxy.url) as client:
        async with client.lock_all(["warm-up", "more"]):
            pass
        before = proxy.round_trips

        async with client.lock_all(FIFTY):
            assert proxy.round_trips == before + 1

        assert proxy.round_trips == before + 2
    assert locks_taken(server) == set()


def test_locks_after_a_busy_one_are_not_acquired(server: Server) -> None:
    backend = Verbs(server.url)
    backend.try_acquire(backend.ticket("many-30"), queue=False)

    outcomes = backend.try_acquire_all([backend.ticket(name) for name in FIFTY])

    assert [type(outcome) for outcome in outcomes] == [Granted] * 30 + [Waiting]
    assert locks_taken(server) == set(FIFTY[:31])
    backend.close()


def test_more_locks_than_one_script_allows_take_several_scripts(server: Server, open_client: OpenClient) -> None:
    names = [f"many-{number:04}" for number in range(SCRIPT_LOCKS_MAX + 100)]
    client = open_client(server.url)

    with client.lock_all(names, timeout=60):
        assert locks_taken(server) == set(names)

    assert locks_taken(server) == set()


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_the_script_is_loaded_again_after_script_flush(method: str, server: Server, open_client: OpenClient) -> None:
    client = open_client(f"{server.url}?method={method}")

    for _ in range(2):
        server.call("SCRIPT", "FLUSH")
        with client.lock_all(FIFTY, timeout=60):
            assert locks_taken(server) == set(FIFTY)

    assert locks_taken(server) == set()


def test_several_locks_take_one_script_with_sentinels(watched: Watched, open_client: OpenClient) -> None:
    client = open_client(watched.url)
    with client.lock_all(["warm-up", "more"]):
        pass
    before = scripts_run(watched.primary)

    with client.lock_all(FIFTY):
        assert scripts_run(watched.primary) == before + 1
        assert locks_taken(watched.primary) == set(FIFTY)

    assert locks_taken(watched.primary) == set()


def test_several_locks_are_acquired_across_slots_of_a_cluster(shared_cluster: Cluster, open_client: OpenClient) -> None:
    client, other = open_client(shared_cluster.url), open_client(shared_cluster.url)
    primaries = {shared_cluster.owner(shared_cluster.slot(f"holdfast:{name}")) for name in FIFTY}
    assert len(primaries) == 3

    with client.lock_all(FIFTY, timeout=60) as lease:
        assert locks_taken(*primaries) >= set(FIFTY)
        assert other.lock_all(["before", *FIFTY]).acquire(timeout=0) is None
        assert set(lease.fences) == set(FIFTY)

    with other.lock_all(["before", *FIFTY], timeout=60):
        pass
    assert not locks_taken(*primaries) & {"before", *FIFTY}


def test_several_locks_of_one_slot_take_one_script_on_a_cluster(
    shared_cluster: Cluster, open_client: OpenClient
) -> None:
    client = open_client(f"{shared_cluster.url}?prefix={{locks}}:")
    owner = shared_cluster.owner(shared_cluster.slot("{locks}:"))
    with client.lock_all(["warm-up", "more"]):
        pass
    before = scripts_run(owner)

    with client.lock_all(FIFTY):
        assert scripts_run(owner) == before + 1
        assert locks_taken(owner, prefix="{locks}:") >= set(FIFTY)

    assert not locks_taken(owner, prefix="{locks}:") & set(FIFTY)


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_several_locks_whose_reply_is_lost_are_all_released(
    method: str, lost: str, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client = open_client(f"{proxy.url}?method={method}&io_timeout=0.5")
    with client.lock_all(["warm-up", "more"]) as lease:
        lease.renew()

    (proxy.lose_next_reply if lost == "reply" else proxy.lose_next_request)("many-07")
    with pytest.raises(holdfast.OutcomeUnknown):
        client.lock_all(FIFTY).acquire(timeout=0)

    proxy.await_loss()
    eventually(lambda: locks_taken(server) == set())
    with client.lock_all(FIFTY, timeout=60):
        assert locks_taken(server) == set(FIFTY)
    assert_free_and_clean(server, FIFTY[0])


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_the_error_names_the_lock_of_another_type_and_the_others_are_released(
    method: str, server: Server, open_client: OpenClient
) -> None:
    client = open_client(f"{server.url}?method={method}")
    server.call("LPUSH", "holdfast:many-03", "not a lock")

    with pytest.raises(holdfast.NameConflict, match="many-03"):
        client.lock_all(FIFTY, timeout=60).acquire()

    eventually(lambda: locks_taken(server) == set())


@pytest.mark.parametrize("method", ["setnx", "getset"])
def test_the_error_names_the_lock_in_use_with_another_method(
    method: str, server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(server.url), open_client(f"{server.url}?method={method}")
    lease = take(other.lock("many-03"))

    with pytest.raises(holdfast.NameConflict, match="many-03"):
        client.lock_all(FIFTY, timeout=60).acquire()

    eventually(lambda: locks_taken(server) == {"many-03"})
    lease.release()
