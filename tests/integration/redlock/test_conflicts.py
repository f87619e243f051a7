"""Hazard: nodes that keep something else under the lock's name, or lend it to programs with another method: taken for a
free lock, for a lock that is held for ever, or for a node that is down.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from tests.integration.redis.scenes import acquiring, await_waiters, take
from tests.integration.redlock.conftest import OpenClient
from tests.support.processes import eventually
from tests.support.redis.councils import Council

KEY = "holdfast:one"


@pytest.mark.parametrize("number", [0, 4])
def test_a_key_of_another_type_on_one_node_is_that_node_s_problem(
    number: int, council: Council, open_client: OpenClient, said: Callable[[], list[str]]
) -> None:
    url = council.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    council.servers[number].call("RPUSH", KEY, "x")

    lease = take(holder.lock("one"))
    assert waiter.lock("one").acquire(timeout=0) is None
    coming = acquiring(waiter.lock("one"))
    await_waiters(holder, "one", 1)
    lease.renew()
    lease.release()
    after = coming.result(timeout=20)

    assert after.fence > lease.fence
    after.release()
    assert council.vote_count("one") == 0
    assert council.servers[number].call("LRANGE", KEY, 0, -1) == ["x"]
    assert not [line for line in said() if "silent" in line]


def test_keys_of_another_type_on_a_majority_are_a_clear_error_and_no_vote_is_left(
    council: Council, open_client: OpenClient
) -> None:
    client = open_client(council.url(quarantine="no"))
    for server in council.servers[:3]:
        server.call("RPUSH", KEY, "x")

    with pytest.raises(holdfast.NameConflict, match="something else"):
        client.lock("one").acquire(timeout=0)
    with pytest.raises(holdfast.NameConflict):
        client.lock("one").acquire()
    with pytest.raises(holdfast.NameConflict):
        client.inspect("one")

    eventually(lambda: council.vote_count("one") == 0)
    take(client.lock("two")).release()


@pytest.mark.parametrize("number", [0, 4])
def test_a_lock_that_one_node_lends_with_another_method_is_refused(
    number: int, council: Council, open_client: OpenClient
) -> None:
    """It could be had from the four others, and would exclude nobody who uses that node alone."""
    client, single = open_client(council.url(quarantine="no")), open_client(council.servers[number].url)
    theirs = take(single.lock("one"))

    with pytest.raises(holdfast.NameConflict, match="method=queue"):
        client.lock("one").acquire(timeout=0)

    assert [vote is not None for vote in council.votes("one")] == [place == number for place in range(5)]
    theirs.release()
    take(client.lock("one")).release()


def test_who_uses_one_of_the_nodes_alone_is_told_that_the_lock_is_a_majority_s(
    council: Council, open_client: OpenClient
) -> None:
    client, single = open_client(council.url(quarantine="no")), open_client(council.servers[2].url)

    with client.lock("one") as lease:
        with pytest.raises(holdfast.NameConflict, match="redlock://"):
            single.lock("one").acquire(timeout=0)
        lease.renew()


def test_another_program_s_keys_on_a_majority_keep_us_out_and_on_a_minority_do_not(
    council: Council, open_client: OpenClient
) -> None:
    """As other Redlock libraries write them: the same random value on every node."""
    client = open_client(council.url(quarantine="no", prefix=""))
    for server in council.servers[:3]:
        server.call("SET", "one", "theirs", "NX", "PX", 30_000)

    assert client.lock("one").acquire(timeout=0) is None
    assert [(holder.agent, holder.fence) for holder in client.inspect("one").holders] == [("another program", 0)]
    coming = acquiring(client.lock("one"))
    with pytest.raises(TimeoutError):
        coming.result(timeout=0.3)
    council.servers[1].call("DEL", "one")

    lease = coming.result(timeout=20)
    assert [council.servers[number].call("GET", "one") for number in (0, 2)] == ["theirs"] * 2
    lease.release()


def test_a_ttl_beyond_what_quarantine_allows_for_is_refused(council: Council, open_client: OpenClient) -> None:
    client = open_client(council.url(quarantine="no", max_ttl=20))

    with pytest.raises(holdfast.ConfigurationError, match=r"ttl=21 .* max_ttl=20"):
        client.lock("one", ttl=21).acquire(timeout=0)

    assert council.vote_count("one") == 0
    take(client.lock("one", ttl=20)).release()
