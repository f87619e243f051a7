"""Hazard: a forked child inherits its parent's lock or connections. It releases a lock of its parent, or mixes its
requests and answers with those of its parent.
"""

from __future__ import annotations

import sys

import pytest

import holdfast
from tests.integration.etcd.helpers import acquired
from tests.support.etcd.servers import Server
from tests.support.processes import Refused, WorkerPool, eventually


@pytest.mark.parametrize("method", ["queue", "key"])
def test_a_child_owns_no_lease_of_its_parent_and_acquires_its_own(pool: WorkerPool, url: str, method: str) -> None:
    parent = pool.start(f"{url}&method={method}", forks=True)
    parent.call("acquire", lock="one", ttl=6)

    child = parent.fork()

    assert child.call("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    with pytest.raises(Refused, match="LockLost"):
        child.call("release", lock="one")
    assert child.call("acquire", lock="one", timeout=0)["acquired"] is None
    child.call("acquire", lock="two", ttl=6)
    parent.call("renew", lock="one")
    parent.call("check", lock="one")
    parent.call("release", lock="one")
    child.call("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_a_child_that_exits_does_not_disturb_its_parent(how: str, pool: WorkerPool, server: Server, url: str) -> None:
    parent = pool.start(url, forks=True)
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
    eventually(lambda: server.keys(url.partition("prefix=")[2].replace("%2F", "/")) == [])


def test_a_child_gets_no_notifications_of_its_waiting_parent(pool: WorkerPool, url: str) -> None:
    with holdfast.Client(url) as holder:
        lease = acquired(holder, "one")
        parent = pool.start(url, forks=True)
        parent.call("acquire_in_background", lock="one")
        eventually(lambda: len(holder.inspect("one").waiters) == 1)

        child = parent.fork()
        child.send("acquire", lock="one")
        eventually(lambda: len(holder.inspect("one").waiters) == 2)
        lease.release()

        assert parent.call("background_outcome", timeout=20)["outcome"] == "acquired"
        assert child.is_silent(0.2)
        parent.call("release", lock="one")
        child.receive()
        child.call("release", lock="one")


@pytest.mark.skipif("coverage" in sys.modules, reason="another thread may hold coverage's own lock during the fork")
def test_a_child_never_hangs_on_a_lock_of_another_thread_of_its_parent(pool: WorkerPool, url: str) -> None:
    parent = pool.start(url)

    outcomes = parent.call("fork_in_a_crowd", times=20, backoff=10.0)["outcomes"]

    assert outcomes == {"fine": 20}, parent.errors()
