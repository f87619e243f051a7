"""Hazard: a forked child inherits its parent's lock or connections: it releases a lease of its parent, or mixes its
requests and replies with those of its parent.
"""

from __future__ import annotations

import sys

import pytest

from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean, await_waiters, take
from tests.support.processes import Refused, WorkerPool, eventually
from tests.support.redis.servers import Server


def test_the_child_owns_no_lease_of_its_parent_and_takes_its_own(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    parent = pool.start(server.url, forks=True)
    parent.call("acquire", lock="one", ttl=3)

    child = parent.fork()

    assert child.call("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    with pytest.raises(Refused, match="LockLost"):
        child.call("release", lock="one")
    assert child.call("acquire", lock="one", timeout=0)["acquired"] is None
    mine = child.call("acquire", lock="two", ttl=3)
    assert parent.call("wait_lost", lock="one", timeout=4)["lost"] is False
    assert child.call("state", lock="two")["held"] is True
    observer = open_client(server.url)
    assert [holder.fence for holder in observer.inspect("two").holders] == [mine["fence"]]
    assert [holder.pid for holder in observer.inspect("one").holders] == [parent.pid]
    parent.call("release", lock="one")
    child.call("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_a_child_that_exits_does_not_disturb_its_parent(how: str, pool: WorkerPool, server: Server) -> None:
    parent = pool.start(server.url, forks=True)
    parent.call("acquire", lock="one", ttl=30)
    child = parent.fork()
    child.call("acquire", lock="two", ttl=30)

    if how == "ends":
        child.call("release", lock="two")
        child.send("end")
        child.receive()
    else:
        child.call("close")

    parent.call("renew", lock="one")
    parent.call("acquire", lock="three")
    parent.call("release", lock="three")
    parent.call("release", lock="one")
    parent.release()
    for lock in ("one", "two", "three"):
        assert_free_and_clean(server, lock)


def test_a_child_forked_while_its_parent_waits_gets_no_notification(
    pool: WorkerPool, server: Server, open_client: OpenClient
) -> None:
    holder = open_client(server.url)
    lease = take(holder.lock("one"))
    parent = pool.start(server.url, forks=True)
    parent.call("acquire_in_background", lock="one")
    await_waiters(holder, "one", 1)

    child = parent.fork()
    child.send("acquire", lock="one")
    await_waiters(holder, "one", 2)
    lease.release()

    assert parent.call("background_outcome", timeout=20)["outcome"] == "acquired"
    assert child.is_silent(0.2)
    parent.call("release", lock="one")
    child.receive()
    child.call("release", lock="one")
    eventually(lambda: "holdfast:one" not in server.all_keys())


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_a_lock_of_another_thread_of_its_parent(pool: WorkerPool, server: Server) -> None:
    parent = pool.start(server.url)

    outcomes = parent.call("fork_in_a_crowd", times=40, backoff=10.0)["outcomes"]

    assert outcomes == {"fine": 40}, parent.errors()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_handed_to_a_child_of_multiprocessing(method: str, pool: WorkerPool, server: Server) -> None:
    parent = pool.start(server.url)
    parent.call("acquire", lock="one")

    child = parent.call("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    assert child["holders"] == [child["pid"]]
    parent.call("check", lock="one")
    parent.call("release", lock="one")
    parent.release()
    assert_free_and_clean(server, "two")
