"""Hazard: a forked or spawned child that inherits its parent's lock, connections or votes."""

from __future__ import annotations

import sys

import pytest

from tests.integration.conftest import OpenClient
from tests.support.processes import Refused, WorkerPool, eventually
from tests.support.redis.redlock import RedlockServers


def test_the_child_owns_no_lease_of_its_parent_and_takes_its_own(
    pool: WorkerPool, redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = redlock.url(quarantine="no")
    parent = pool.start(url, forks=True)
    parent.call("acquire", lock="one", ttl=3)

    child = parent.fork()

    assert child.call("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    with pytest.raises(Refused, match="LockLost"):
        child.call("release", lock="one")
    assert child.call("acquire", lock="one", timeout=0)["acquired"] is None
    mine = child.call("acquire", lock="two", ttl=3)
    assert parent.call("wait_lost", lock="one", timeout=4)["lost"] is False
    observer = open_client(url)
    assert [holder.fence for holder in observer.inspect("two").holders] == [mine["fence"]]
    assert [holder.pid for holder in observer.inspect("one").holders] == [parent.pid]
    parent.call("release", lock="one")
    child.call("release", lock="two")
    eventually(lambda: redlock.vote_count("one") + redlock.vote_count("two") == 0)


def test_a_child_that_closes_its_client_does_not_disturb_its_parent(
    pool: WorkerPool, own_redlock: RedlockServers
) -> None:
    parent = pool.start(own_redlock.url(quarantine="no"), forks=True)
    parent.call("acquire", lock="one", ttl=30)
    own_redlock.servers[4].kill()
    parent.call("acquire", lock="two", ttl=30)  # now the parent has a background worker for that node
    parent.call("release", lock="two")

    child = parent.fork()
    child.call("acquire", lock="three", ttl=30)
    child.call("close")

    parent.call("renew", lock="one")
    parent.call("release", lock="one")
    parent.release()
    for lock in ("one", "two", "three"):
        assert own_redlock.vote_count(lock) == 0


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_a_lock_of_another_thread_of_its_parent(
    pool: WorkerPool, redlock: RedlockServers
) -> None:
    parent = pool.start(redlock.url(quarantine="no"))

    outcomes = parent.call("fork_in_a_crowd", times=20, backoff=10.0)["outcomes"]

    assert outcomes == {"fine": 20}, parent.errors()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_handed_to_a_child_of_multiprocessing(
    method: str, pool: WorkerPool, redlock: RedlockServers
) -> None:
    parent = pool.start(redlock.url(quarantine="no"))
    parent.call("acquire", lock="one")

    child = parent.call("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    assert child["holders"] == [child["pid"]]
    parent.call("check", lock="one")
    parent.call("release", lock="one")
    parent.release()
    assert redlock.vote_count("two") == 0
