"""Hazard: the wall clock of a node is set. The node measures the ttl of its vote with this clock, and begins its count
of fences with the time of this clock.

One wrong clock ends one vote early, and a majority remains. With wrong clocks on a majority, two clients can hold the
lock until the next renewal of the first one. This is documented, and it is the reason why the fence has to grow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import take
from tests.integration.redlock.conftest import StartRedlock
from tests.support.processes import eventually
from tests.support.redis.clock import WallClock


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock")


def test_a_jump_forward_on_one_node_ends_its_vote_but_not_the_lease(
    clock: WallClock, start_redlock: StartRedlock, open_client: OpenClient
) -> None:
    redlock = start_redlock(environments={1: clock.environment})
    url = redlock.url(quarantine="no")
    holder, other = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=6))

    clock.step(3600)
    vote = redlock.votes("one")[1]
    busy = other.lock("one").acquire(timeout=0)

    assert vote is None
    assert busy is None
    eventually(lambda: redlock.vote_count("one") == 5)  # repaired at the next renewal
    assert lease.held
    lease.release()
    assert redlock.vote_count("one") == 0


def test_fences_grow_when_clocks_of_nodes_jump(
    clock: WallClock, start_redlock: StartRedlock, open_client: OpenClient
) -> None:
    redlock = start_redlock(environments={1: clock.environment, 3: clock.environment})
    url = redlock.url(quarantine="no")
    clients = [open_client(url) for _ in range(2)]
    fences = []

    for number, step in enumerate([0, 3600, -7200, 86_400, -86_400, 50, -50, 0]):
        clock.step(step)
        for client in clients:
            # One node is stopped during each acquire, so the counts of the nodes differ afterwards.
            redlock.servers[number % 5].stop()
            lease = take(client.lock("one", ttl=20))
            redlock.servers[number % 5].resume()
            fences.append(lease.fence)
            lease.release()

    assert fences == sorted(set(fences))


def test_a_node_without_data_counts_from_its_clock_and_the_others_follow(
    clock: WallClock, start_redlock: StartRedlock, open_client: OpenClient
) -> None:
    redlock = start_redlock(environments={0: clock.environment})
    client = open_client(redlock.url(quarantine="no"))
    before = take(client.lock("one"))
    before.release()

    clock.step(3600)
    redlock.servers[0].restart()
    eventually(lambda: _fence(client) > before.fence + 3_599_000_000)
    fence = _fence(client)
    redlock.servers[0].kill()

    assert _fence(client) > fence


def test_a_jump_forward_on_a_majority_grants_another_client_a_greater_fence_and_the_old_lease_is_lost(
    clock: WallClock, start_redlock: StartRedlock, open_client: OpenClient
) -> None:
    redlock = start_redlock(environments=dict.fromkeys((0, 2, 4), clock.environment))
    url = redlock.url(quarantine="no")
    holder, other = open_client(url), open_client(url)
    old = take(holder.lock("one", ttl=30))

    clock.step(60)
    new = take(other.lock("one", ttl=30), timeout=20)

    assert new.fence > old.fence
    with pytest.raises(holdfast.LockLost):
        old.renew()
    new.renew()
    new.release()


def _fence(client: holdfast.Client) -> int:
    with client.lock("one") as lease:
        return lease.fence
