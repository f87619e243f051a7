"""Hazard: nodes have a key of another type or of another method under the lock's name, and it is mistaken for a free
lock, for a lock that never expires, or for a node that is down.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, await_waiters, take
from tests.support.processes import eventually
from tests.support.redis.redlock import RedlockServers

KEY = "holdfast:one"


@pytest.mark.parametrize("number", [0, 4])
def test_a_lock_works_when_one_node_has_a_key_of_another_type(
    number: int, redlock: RedlockServers, open_client: OpenClient, logged: Callable[[], list[str]]
) -> None:
    url = redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    redlock.servers[number].call("RPUSH", KEY, "x")

    lease = take(holder.lock("one"))
    assert waiter.lock("one").acquire(timeout=0) is None
    pending = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)
    lease.renew()
    lease.release()
    after = pending.result(timeout=20)

    assert after.fence > lease.fence
    after.release()
    assert redlock.vote_count("one") == 0
    assert redlock.servers[number].call("LRANGE", KEY, 0, -1) == ["x"]
    assert not [line for line in logged() if "silent" in line]


def test_keys_of_another_type_on_a_majority_raise_name_conflict_and_leave_no_vote(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    client = open_client(redlock.url(quarantine="no"))
    for server in redlock.servers[:3]:
        server.call("RPUSH", KEY, "x")

    with pytest.raises(holdfast.NameConflict, match="with another type"):
        client.lock("one").acquire(timeout=0)
    with pytest.raises(holdfast.NameConflict):
        client.lock("one").acquire()
    with pytest.raises(holdfast.NameConflict):
        client.inspect("one")

    eventually(lambda: redlock.vote_count("one") == 0)
    take(client.lock("two")).release()


@pytest.mark.parametrize("number", [0, 4])
def test_a_lock_in_use_with_another_method_on_one_node_is_refused(
    number: int, redlock: RedlockServers, open_client: OpenClient
) -> None:
    """The four other nodes could grant it, but that would not exclude clients that use this node alone."""
    client, single = open_client(redlock.url(quarantine="no")), open_client(redlock.servers[number].url)
    theirs = take(single.lock("one"))

    with pytest.raises(holdfast.NameConflict, match="method=queue"):
        client.lock("one").acquire(timeout=0)

    assert [vote is not None for vote in redlock.votes("one")] == [node == number for node in range(5)]
    theirs.release()
    take(client.lock("one")).release()


def test_a_client_of_a_single_node_gets_name_conflict_for_a_redlock_lock(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    client, single = open_client(redlock.url(quarantine="no")), open_client(redlock.servers[2].url)

    with client.lock("one") as lease:
        with pytest.raises(holdfast.NameConflict, match="redlock://"):
            single.lock("one").acquire(timeout=0)
        lease.renew()


def test_keys_of_another_program_block_holdfast_on_a_majority_and_not_on_a_minority(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    """Other Redlock libraries write the same random value on every node."""
    client = open_client(redlock.url(quarantine="no", prefix=""))
    for server in redlock.servers[:3]:
        server.call("SET", "one", "theirs", "NX", "PX", 30_000)

    assert client.lock("one").acquire(timeout=0) is None
    assert [(holder.agent, holder.fence) for holder in client.inspect("one").holders] == [("another program", 0)]
    pending = acquiring(client.lock("one"))
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.3)
    redlock.servers[1].call("DEL", "one")

    lease = pending.result(timeout=20)
    assert [redlock.servers[number].call("GET", "one") for number in (0, 2)] == ["theirs"] * 2
    lease.release()


def test_a_ttl_longer_than_max_ttl_is_refused(redlock: RedlockServers, open_client: OpenClient) -> None:
    client = open_client(redlock.url(quarantine="no", max_ttl=20))

    with pytest.raises(holdfast.ConfigurationError, match=r"ttl=21 .* max_ttl=20"):
        client.lock("one", ttl=21).acquire(timeout=0)

    assert redlock.vote_count("one") == 0
    take(client.lock("one", ttl=20)).release()
