"""A forked child inherits its parent's lock or connections: it releases a lease of its parent, mixes its requests and
answers with those of its parent, or hangs on a mutex that another thread of its parent held.
"""

from __future__ import annotations

import sys

import pytest

import holdfast
from holdfast_lab.checking.promises import IN_ORDER
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.processes import PATIENCE, Refused, WorkerPool, eventually

# One backend for each kind of connection. A store in memory has one process; the other methods use the same kinds.
pytestmark = pytest.mark.not_on(
    "memory", "redis-cluster", "redis-setnx", "redis-getset", "zookeeper-kazoo", "mysql-row", "mysql-version"
)


@pytest.mark.parametrize("how", ["closes its client", "ends"])
def test_a_child_has_no_lease_of_its_parent_and_its_exit_does_not_disturb_it(
    how: str, store_url: str, pool: WorkerPool
) -> None:
    parent = pool.start(store_url, forks=True)
    parent.call("acquire", lock="one", ttl=20)

    child = parent.fork()

    assert child.call("state", lock="one") | {"at": 0} == {"at": 0, "lost": True, "held": False, "remaining": 0.0}
    for verb in ("check", "release"):
        with pytest.raises(Refused, match="LockLost"):
            child.call(verb, lock="one")
    assert child.call("acquire", lock="one", timeout=0)["acquired"] is None
    own = child.call("acquire", lock="two", ttl=20)
    assert own["acquired"] is not None
    parent.call("renew", lock="one")
    with holdfast.Client(store_url) as observer:
        assert [holder.fence for holder in observer.inspect("two").holders] == [own["fence"]]
        if how == "ends":
            child.call("release", lock="two")
            child.send("end")
            child.receive()
        else:
            child.call("close")
        parent.call("check", lock="one")
        parent.call("renew", lock="one")
        parent.call("acquire", lock="three")
        parent.call("release", lock="three")
        parent.call("release", lock="one")
        parent.release()
        eventually(lambda: observer.locks() == [])


def test_the_leases_of_parent_and_child_are_renewed(store_url: str, pool: WorkerPool) -> None:
    parent = pool.start(store_url, forks=True)
    parent.call("acquire", lock="one", ttl=3)

    child = parent.fork()
    child.call("acquire", lock="two", ttl=3)

    assert parent.call("wait_lost", lock="one", timeout=4)["lost"] is False
    assert child.call("state", lock="two")["held"] is True
    parent.call("release", lock="one")
    child.call("release", lock="two")


def test_a_child_gets_no_notification_of_its_waiting_parent(store_url: str, case: Case, pool: WorkerPool) -> None:
    if not case.shows_waiters or case.claims.order not in IN_ORDER:
        pytest.skip(f"{case.name} does not show waiters, or the child may come first")
    with holdfast.Client(store_url) as holder:
        lease = holder.lock("one", timeout=30).acquire()
        assert lease is not None
        parent = pool.start(store_url, forks=True)
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
def test_a_child_never_hangs_on_a_mutex_of_another_thread_of_its_parent(
    store_url: str, case: Case, pool: WorkerPool
) -> None:
    parent = pool.start(store_url)

    for _ in range({"sqlite": 5, "redis": 2}.get(case.name, 1)):
        parent.send("fork_beside_threads", times=5, backoff=PATIENCE)
        outcomes = parent.receive(within=2 * PATIENCE)["outcomes"]
        assert outcomes == {"fine": 5}, parent.errors()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_passed_to_a_child_of_multiprocessing(
    method: str, store_url: str, case: Case, pool: WorkerPool
) -> None:
    parent = pool.start(store_url)
    parent.call("acquire", lock="one")

    child = parent.call("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    if case.shows_who:
        assert child["holders"] == [child["pid"]]
    parent.call("check", lock="one")
    parent.call("release", lock="one")
    parent.release()
    with holdfast.Client(store_url) as observer:
        eventually(lambda: observer.locks() == [])
