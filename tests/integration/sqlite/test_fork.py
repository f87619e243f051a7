"""Hazard: a forked child that inherits its parent's lock, gives it back, stands in for its parent's life, or hangs on
what another thread of the parent had in its hands.

SQLite adds one of its own: what a process knows of the locks that it has on a file is inherited, the locks are not. A
child that opens the file beside an inherited connection believes in locks that it does not have.
"""

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import Refused, WorkerPool, eventually, now


def test_the_child_owns_no_lease_of_its_parent(pool: WorkerPool, store: Store) -> None:
    parent = pool.start(store.url, forks=True)
    parent.call("acquire", lock="one")

    child = parent.fork()

    state = child.call("state", lock="one")
    assert (state["lost"], state["held"], state["remaining"]) == (True, False, 0.0)
    with pytest.raises(Refused, match="LockLost"):
        child.call("check", lock="one")
    with pytest.raises(Refused, match="LockLost"):
        child.call("release", lock="one")
    parent.call("check", lock="one")
    parent.call("release", lock="one")


def test_the_child_takes_locks_of_its_own_and_is_kept_out_by_its_parent(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    parent = pool.start(store.url, forks=True)
    parent.call("acquire", lock="one")
    child = parent.fork()

    mine = child.call("acquire", lock="two", timeout=5)
    busy = child.call("acquire", lock="one", timeout=0)

    assert mine["acquired"] is not None
    assert busy["acquired"] is None
    assert observer.holders("one") == [parent.pid]
    assert observer.holders("two") not in ([], [parent.pid])
    child.send("acquire", lock="one")
    eventually(lambda: len(observer.waiters("one")) == 1)
    parent.call("release", lock="one")
    assert child.receive()["acquired"] is not None


def test_the_parent_s_lease_goes_on_being_renewed(pool: WorkerPool, store: Store) -> None:
    parent = pool.start(store.url, forks=True)
    parent.call("acquire", lock="one", ttl=1)

    child = parent.fork()
    child.call("acquire", lock="two", ttl=1)

    assert parent.call("wait_lost", lock="one", timeout=3.0)["lost"] is False
    assert child.call("state", lock="two")["held"] is True
    parent.call("release", lock="one")
    child.call("release", lock="two")


@pytest.mark.parametrize("uses_locks", [False, True], ids=["idle child", "child with a lock"])
def test_the_parent_s_lock_is_free_when_the_parent_dies_although_the_child_lives_on(
    uses_locks: bool,  # noqa: FBT001  a parameter of the test
    pool: WorkerPool,
    store: Store,
    observer: Observer,
) -> None:
    parent, waiter = pool.start(store.url, forks=True), pool.start(store.url)
    parent.call("acquire", lock="one", ttl=30)
    child = parent.fork()
    if uses_locks:
        child.call("acquire", lock="two", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    parent.kill()
    entered = waiter.receive()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the parent's death")
    assert entered - killed < 5.0
    assert child.call("state", lock="one")["lost"] is True
    if uses_locks:
        child.call("check", lock="two")
        child.call("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends", "takes a lock and ends", "takes a lock and closes"])
def test_a_child_that_goes_does_not_disturb_its_parent_s_lock(
    how: str, pool: WorkerPool, store: Store, observer: Observer
) -> None:
    parent, other = pool.start(store.url, forks=True), pool.start(store.url)
    parent.call("acquire", lock="one", ttl=30)
    child = parent.fork()

    if "takes" in how:
        child.call("acquire", lock="two", ttl=30)
    if "close" in how:
        child.call("close")
    else:
        child.send("end")
        child.receive()

    parent.call("check", lock="one")
    assert observer.holders("one") == [parent.pid]
    assert other.call("acquire", lock="one", timeout=0)["acquired"] is None
    parent.call("renew", lock="one")
    parent.call("release", lock="one")
    eventually(lambda: observer.holders("two") == [])


@pytest.mark.parametrize("goes", ["parent", "child"])
def test_parent_and_child_go_on_excluding_others_when_one_of_the_two_has_closed(
    goes: str, pool: WorkerPool, store: Store
) -> None:
    parent, other = pool.start(store.url, forks=True), pool.start(store.url)
    parent.call("acquire", lock="one")
    child = parent.fork()
    child.call("acquire", lock="two")
    child.call("release", lock="two")

    (parent if goes == "parent" else child).call("close")
    other.call("acquire", lock="three")
    stays = child if goes == "parent" else parent

    assert stays.call("acquire", lock="three", timeout=0)["acquired"] is None


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_what_another_thread_of_its_parent_was_doing(pool: WorkerPool, store: Store) -> None:
    parent = pool.start(store.url)

    outcomes = parent.call("fork_in_a_crowd", times=100, backoff=10.0)["outcomes"]

    report(f"{outcomes}")
    assert outcomes == {"fine": 100}, parent.errors()


def test_a_child_made_while_the_file_was_busy_does_not_believe_in_locks_that_it_has_not(
    pool: WorkerPool, store: Store
) -> None:
    parent, stranger, other = pool.start(store.url, forks=True), *pool.start_many(2, store.url)
    parent.call("acquire", lock="one")
    stranger.call("begin_raw")
    parent.call("acquire_in_background", lock="two")
    child = parent.fork()  # while that thread is at it
    stranger.call("commit_raw")

    with contextlib.suppress(Refused):
        child.call("acquire", lock="of its own", timeout=5)
    assert parent.call("background_outcome", timeout=20)["outcome"] == "acquired"
    parent.call("close")
    other.call("acquire", lock="three")
    in_child = None
    with contextlib.suppress(Refused):  # not to use the file at all would be right too
        in_child = child.call("acquire", lock="three", timeout=0)["acquired"]

    assert in_child is None, "both hold it"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_handed_to_a_child_of_multiprocessing(method: str, pool: WorkerPool, store: Store) -> None:
    parent = pool.start(store.url)
    mine = parent.call("acquire", lock="one")

    child = parent.call("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    assert child["fence"] > mine["fence"]
    assert child["holders"] == [child["pid"]]
    parent.call("check", lock="one")
    parent.call("release", lock="one")
    parent.release()
    assert store.tickets == 0
