"""Hazard: a forked child inherits its parent's lock, releases it, keeps its parent's session alive, or hangs on a mutex
that another thread of the parent held.

SQLite adds another hazard: a child inherits the memory in which SQLite records its locks on a file, but not the locks.
A child that opens the file while it has an inherited connection assumes locks that it does not have.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import Refused, WorkerPool, eventually, now


def test_the_child_acquires_locks_and_is_blocked_by_its_parent(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    parent = pool.start(store.url, forks=True)
    parent.call("acquire", lock="one")
    child = parent.fork()

    granted = child.call("acquire", lock="two", timeout=5)
    busy = child.call("acquire", lock="one", timeout=0)

    assert granted["acquired"] is not None
    assert busy["acquired"] is None
    assert observer.holders("one") == [parent.pid]
    assert observer.holders("two") not in ([], [parent.pid])
    child.send("acquire", lock="one")
    eventually(lambda: len(observer.waiters("one")) == 1)
    parent.call("release", lock="one")
    assert child.receive()["acquired"] is not None


@pytest.mark.parametrize("uses_locks", [False, True], ids=["idle child", "child with a lock"])
def test_the_lock_of_the_parent_is_free_when_it_dies_although_the_child_lives(
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
    acquired = waiter.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the parent's death")
    assert acquired - killed < 5.0
    assert child.call("state", lock="one")["lost"] is True
    if uses_locks:
        child.call("check", lock="two")
        child.call("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends", "takes a lock and ends", "takes a lock and closes"])
def test_the_end_of_a_child_does_not_disturb_the_lock_of_its_parent(
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


@pytest.mark.parametrize("closes", ["parent", "child"])
def test_others_exclude_the_remaining_process_after_parent_or_child_has_closed(
    closes: str, pool: WorkerPool, store: Store
) -> None:
    parent, other = pool.start(store.url, forks=True), pool.start(store.url)
    parent.call("acquire", lock="one")
    child = parent.fork()
    child.call("acquire", lock="two")
    child.call("release", lock="two")

    (parent if closes == "parent" else child).call("close")
    other.call("acquire", lock="three")
    open_process = child if closes == "parent" else parent

    assert open_process.call("acquire", lock="three", timeout=0)["acquired"] is None


def test_a_child_forked_during_a_transaction_does_not_assume_locks(pool: WorkerPool, store: Store) -> None:
    parent, stranger, other = pool.start(store.url, forks=True), *pool.start_many(2, store.url)
    parent.call("acquire", lock="one")
    stranger.call("begin_raw")
    parent.call("acquire_in_background", lock="two")
    child = parent.fork()  # while that thread uses the file
    stranger.call("commit_raw")

    with contextlib.suppress(Refused):
        child.call("acquire", lock="two of the child", timeout=5)
    assert parent.call("background_outcome", timeout=20)["outcome"] == "acquired"
    parent.call("close")
    other.call("acquire", lock="three")
    acquired = None
    with contextlib.suppress(Refused):  # a refusal to use the file is correct too
        acquired = child.call("acquire", lock="three", timeout=0)["acquired"]

    assert acquired is None, "both hold the lock"
