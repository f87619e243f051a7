"""Hazard: nodes that are down or hang. A minority of them makes every call slow or fail; with a majority of them a lock
is granted anyway, or "no answer" cannot be distinguished from "busy".
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import take, waiting
from tests.integration.redlock.conftest import StartRedlock
from tests.support.processes import eventually, now
from tests.support.redis.redlock import RedlockServers

LoggedLines = Callable[[], list[str]]


def test_locks_work_with_one_warning_per_node_when_two_of_five_nodes_are_down(
    own_redlock: RedlockServers, open_client: OpenClient, logged: LoggedLines
) -> None:
    url = own_redlock.url(quarantine="no")
    client, other = open_client(url), open_client(url)
    take(client.lock("one")).release()

    for server in own_redlock.servers[:2]:
        server.kill()
    fences = []
    for _ in range(50):
        lease = take(client.lock("one"))
        fences.append(lease.fence)
        assert own_redlock.vote_count("one") == 3
        lease.renew()
        lease.release()
    with client.lock("one"):
        assert other.lock("one").acquire(timeout=0) is None

    assert fences == sorted(set(fences))
    assert own_redlock.vote_count("one") == 0
    for address in own_redlock.addresses[:2]:
        assert len([line for line in logged() if address in line and "client" not in line]) == 2  # each client logs one
    assert not [
        line for line in logged() for address in own_redlock.addresses[2:] if address in line.split("silent")[-1]
    ]


def test_a_minority_that_is_down_is_shown_to_operators(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    url = own_redlock.url(quarantine="no")
    client = open_client(url)
    lease = take(client.lock("one"))
    assert not client.warnings

    own_redlock.servers[0].kill()
    lease.renew()  # the other nodes renew it; the request to the dead node fails
    command = [sys.executable, "-m", "holdfast", "show", "one", "--url", url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert [warning.split(": ")[0] for warning in client.warnings] == own_redlock.addresses[:1]
    assert str(lease.fence) in shown.stdout
    assert own_redlock.addresses[0] in shown.stderr
    lease.release()


def test_no_lock_is_granted_and_the_error_names_the_nodes_when_three_of_five_are_down(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    take(client.lock("one")).release()

    for server in own_redlock.servers[:3]:
        server.kill()
    with pytest.raises(holdfast.QuorumError) as first:
        client.lock("one").acquire(timeout=0)
    with pytest.raises(holdfast.QuorumError) as second, client.lock("one", timeout=1):
        pytest.fail("no client may acquire the lock")

    for caught in (first.value, second.value):
        assert (caught.needed, caught.nodes) == (3, 5)
        assert list(caught.causes) == own_redlock.addresses[:3]
        assert all(address in str(caught) for address in own_redlock.addresses[:3])
    eventually(lambda: own_redlock.vote_count("one") == 0)

    for server in own_redlock.servers[:3]:
        server.start()
    eventually(lambda: _can_acquire(client, "one"))


def test_a_wait_that_times_out_without_a_majority_raises_quorum_error(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = own_redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=30, renew=False))
    began = now()
    pending = waiting(waiter, "one", timeout=3)

    for server in own_redlock.servers[2:]:
        server.kill()

    with pytest.raises(holdfast.QuorumError):
        pending.result(timeout=30)
    assert now() - began >= 3  # it kept trying until its timeout
    assert lease.held  # its deadline has not passed


def test_a_holder_without_a_majority_loses_its_lease_at_its_deadline(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    lease = take(client.lock("one", ttl=4))
    deadline = now() + lease.remaining

    for server in own_redlock.servers[2:]:
        server.kill()

    assert lease.wait_lost(10)
    assert now() >= deadline - 0.1
    with pytest.raises(holdfast.LockLost):
        lease.release()


def test_a_holder_and_a_waiter_outlive_the_death_of_a_minority(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = own_redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3))
    pending = waiting(waiter, "one", ttl=3)

    for server in own_redlock.servers[:2]:  # the waiter is subscribed on the first of them
        server.kill()

    assert not lease.wait_lost(4)  # more than its ttl
    assert not pending.done()
    lease.release()
    after = pending.result(timeout=20)
    assert after.fence > lease.fence
    after.release()


@pytest.mark.parametrize("number", [0, 4])
def test_a_hanging_node_delays_one_call_only(number: int, own_redlock: RedlockServers, open_client: OpenClient) -> None:
    limit = 1.5
    client = open_client(own_redlock.url(quarantine="no", node_timeout=limit))
    take(client.lock("one")).release()

    own_redlock.servers[number].stop()
    durations = []
    began = now()
    while now() - began < 6:  # long enough for several requests to the node in the background
        requested_at = now()
        lease = take(client.lock("one", ttl=20))
        durations.append(now() - requested_at)
        time.sleep(0.02)  # so that this test does not keep six processes busy
        lease.release()
    own_redlock.servers[number].resume()

    assert len(durations) > 20
    assert sum(seconds >= limit * 0.4 for seconds in durations) <= 1, sorted(durations)[-5:]


def test_a_node_that_hung_votes_again_when_it_answers(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    take(client.lock("one")).release()
    own_redlock.servers[1].stop()
    take(client.lock("one")).release()

    own_redlock.servers[1].resume()

    def votes_again() -> bool:
        with client.lock("one"):
            return own_redlock.vote_count("one") == 5

    eventually(votes_again)


def test_a_renewal_includes_an_unresponsive_node_if_the_lease_needs_its_vote(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    take(client.lock("other")).release()
    first, *_, hanging, last = own_redlock.servers
    for server in (first, last):
        server.kill()
    lease = take(client.lock("one", ttl=60, renew=False))
    assert own_redlock.vote_count("one") == 3

    last.start()

    def last_votes() -> bool:
        with client.lock("other"):
            return own_redlock.vote_count("other") == 4

    eventually(last_votes)
    hanging.stop()
    take(client.lock("other")).release()  # the client notices that the node hangs
    hanging.resume()

    lease.renew()
    assert own_redlock.vote_count("one") == 4
    lease.release()


def test_a_free_lock_is_acquired_at_once_when_a_node_hangs_and_counts_differ(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    """The votes are complete only at the end of the time of the first round. The second round needs time of its own."""
    client = open_client(own_redlock.url(quarantine="no"))
    take(client.lock("one")).release()
    for number, server in enumerate(own_redlock.servers):
        record = next(key for key in server.all_keys() if key.endswith(":record"))
        server.call("HINCRBY", record, "count", number * 1000)

    own_redlock.servers[2].stop()
    lease = client.lock("one").acquire(timeout=0)
    own_redlock.servers[2].resume()

    assert lease is not None
    lease.release()


def test_operators_see_all_locks_although_a_node_hangs(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    leases = [take(client.lock(f"lock-{number:02}")) for number in range(30)]

    own_redlock.servers[3].stop()
    shown = client.locks()
    own_redlock.servers[3].resume()

    assert [info.name for info in shown] == [lease.name for lease in leases]
    assert [info.holders[0].fence for info in shown] == [lease.fence for lease in leases]
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("how", ["dead", "hanging"])
def test_closing_a_client_does_not_wait_for_nodes_that_do_not_answer(how: str, own_redlock: RedlockServers) -> None:
    client = holdfast.Client(own_redlock.url(quarantine="no"))
    held = take(client.lock("one", ttl=60))
    for server in own_redlock.servers[:2]:
        server.kill() if how == "dead" else server.stop()
    take(client.lock("two", ttl=60)).release()

    began = now()
    client.close()

    assert now() - began < 20  # the time limits of two requests are shorter, the ttl is longer
    assert not held.held
    assert own_redlock.votes("one")[2:] == [None] * 3


@pytest.mark.parametrize("how", ["dead", "hanging"])
async def test_closing_an_asyncio_client_does_not_wait_for_nodes_that_do_not_answer(
    how: str, own_redlock: RedlockServers
) -> None:
    client = holdfast.AsyncClient(own_redlock.url(quarantine="no"))
    held = await client.lock("one", ttl=60).acquire()
    assert held is not None
    for server in own_redlock.servers[:2]:
        server.kill() if how == "dead" else server.stop()
    async with client.lock("two", ttl=60):
        pass

    began = now()
    await client.close()

    assert now() - began < 20
    assert not held.held
    assert own_redlock.votes("one")[2:] == [None] * 3


def test_a_node_with_another_password_is_tolerated_and_named(
    own_redlock: RedlockServers, open_client: OpenClient, logged: LoggedLines
) -> None:
    own_redlock.servers[4].call("CONFIG", "SET", "requirepass", "right")
    url = own_redlock.url(quarantine="no").replace(own_redlock.addresses[4], f":wrong@{own_redlock.addresses[4]}")
    client = open_client(url)

    with client.lock("one"):
        assert own_redlock.vote_count("one") == 4

    assert any(own_redlock.addresses[4] in line and "WRONGPASS" in line for line in logged())
    assert not any("wrong@" in line for line in logged())
    for server in own_redlock.servers[:2]:
        server.kill()
    with pytest.raises(holdfast.QuorumError) as caught:
        client.lock("one").acquire(timeout=0)
    assert own_redlock.addresses[4] in caught.value.causes
    assert "wrong@" not in str(caught.value)


def test_each_node_may_have_its_own_password_and_database(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    url = own_redlock.url(quarantine="no")
    for number, (server, address) in enumerate(zip(own_redlock.servers, own_redlock.addresses, strict=True)):
        server.call("CONFIG", "SET", "requirepass", f"secret-{number}")
        url = url.replace(address, f":secret-{number}@{address}/{number}")
    client = open_client(url)

    with client.lock("one"):
        for number, server in enumerate(own_redlock.servers):
            with server.connect() as connection:
                connection.call("AUTH", f"secret-{number}")
                connection.call("SELECT", number)
                assert connection.call("EXISTS", "holdfast:one") == 1

    assert "secret" not in client.url


def test_a_node_that_may_evict_is_refused_and_no_lease_is_lost(
    own_redlock: RedlockServers, open_client: OpenClient, logged: LoggedLines
) -> None:
    holder = open_client(own_redlock.url(quarantine="no"))
    lease = take(holder.lock("one", ttl=3))

    own_redlock.servers[2].call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    own_redlock.servers[2].call("CLIENT", "KILL", "TYPE", "normal")
    with pytest.raises(holdfast.ConfigurationError, match="maxmemory-policy"):
        open_client(own_redlock.url(quarantine="no")).lock("two").acquire(timeout=0)

    assert not lease.wait_lost(4)  # more than its ttl
    lease.release()
    assert not [line for line in logged() if "keeper failed" in line]


@pytest.mark.parametrize("killed", [2, 3])
async def test_tasks_need_a_majority_to_acquire(killed: int, own_redlock: RedlockServers) -> None:
    async with holdfast.AsyncClient(own_redlock.url(quarantine="no")) as client:
        async with client.lock("one") as first:
            pass
        for server in own_redlock.servers[:killed]:
            server.kill()

        if killed == 3:
            with pytest.raises(holdfast.QuorumError) as caught:
                await client.lock("one").acquire(timeout=0)
            assert list(caught.value.causes) == own_redlock.addresses[:3]
            for server in own_redlock.servers[:killed]:
                server.start()
            while not await _can_acquire_async(client, "one"):
                await asyncio.sleep(0.05)
        else:
            fences = await asyncio.gather(*(_visit(client, "one") for _ in range(20)))
            assert len({first.fence, *fences}) == 21
    eventually(lambda: own_redlock.vote_count("one") == 0)


async def test_a_hanging_node_delays_one_task_only(own_redlock: RedlockServers) -> None:
    limit = 1.5
    async with holdfast.AsyncClient(own_redlock.url(quarantine="no", node_timeout=limit)) as client:
        async with client.lock("one"):
            pass
        own_redlock.servers[0].stop()
        durations = []
        began = now()
        while now() - began < 6:
            requested_at = now()
            async with client.lock("one", ttl=20):
                durations.append(now() - requested_at)
                await asyncio.sleep(0.02)  # so that this test does not keep six processes busy
        own_redlock.servers[0].resume()

    assert len(durations) > 20
    assert sum(seconds >= limit * 0.4 for seconds in durations) <= 1, sorted(durations)[-5:]


def test_a_node_that_never_replied_has_no_effect(start_redlock: StartRedlock) -> None:
    redlock = start_redlock()
    redlock.servers[0].stop()

    with holdfast.Client(redlock.url(quarantine="no")) as client:
        for _ in range(5):
            take(client.lock("one")).release()

    redlock.servers[0].resume()


def _can_acquire(client: holdfast.Client, name: str) -> bool:
    try:
        with client.lock(name, timeout=0):
            return True
    except (holdfast.BackendError, holdfast.AcquireTimeout):
        return False


async def _can_acquire_async(client: holdfast.AsyncClient, name: str) -> bool:
    try:
        async with client.lock(name, timeout=0):
            return True
    except (holdfast.BackendError, holdfast.AcquireTimeout):
        return False


async def _visit(client: holdfast.AsyncClient, name: str) -> int:
    async with client.lock(name, timeout=30) as lease:
        return lease.fence
