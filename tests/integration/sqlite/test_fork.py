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
from tests.support.processes import Crew, Refused, eventually, now


def test_the_child_owns_no_lease_of_its_parent(crew: Crew, store: Store) -> None:
    parent = crew.start(store.url, forks=True)
    parent.ask("acquire", lock="one")

    child = parent.fork()

    state = child.ask("state", lock="one")
    assert (state["lost"], state["held"], state["remaining"]) == (True, False, 0.0)
    with pytest.raises(Refused, match="LockLost"):
        child.ask("check", lock="one")
    with pytest.raises(Refused, match="LockLost"):
        child.ask("release", lock="one")
    parent.ask("check", lock="one")
    parent.ask("release", lock="one")


def test_the_child_takes_locks_of_its_own_and_is_kept_out_by_its_parent(
    crew: Crew, store: Store, observer: Observer
) -> None:
    parent = crew.start(store.url, forks=True)
    parent.ask("acquire", lock="one")
    child = parent.fork()

    mine = child.ask("acquire", lock="two", timeout=5)
    busy = child.ask("acquire", lock="one", timeout=0)

    assert mine["acquired"] is not None
    assert busy["acquired"] is None
    assert observer.holders("one") == [parent.pid]
    assert observer.holders("two") not in ([], [parent.pid])
    child.tell("acquire", lock="one")
    eventually(lambda: len(observer.waiters("one")) == 1)
    parent.ask("release", lock="one")
    assert child.hear()["acquired"] is not None


def test_the_parent_s_lease_goes_on_being_renewed(crew: Crew, store: Store) -> None:
    parent = crew.start(store.url, forks=True)
    parent.ask("acquire", lock="one", ttl=1)

    child = parent.fork()
    child.ask("acquire", lock="two", ttl=1)

    assert parent.ask("wait_lost", lock="one", timeout=3.0)["lost"] is False
    assert child.ask("state", lock="two")["held"] is True
    parent.ask("release", lock="one")
    child.ask("release", lock="two")


@pytest.mark.parametrize("uses_locks", [False, True], ids=["idle child", "child with a lock"])
def test_the_parent_s_lock_is_free_when_the_parent_dies_although_the_child_lives_on(
    uses_locks: bool,  # noqa: FBT001  a parameter of the test
    crew: Crew,
    store: Store,
    observer: Observer,
) -> None:
    parent, waiter = crew.start(store.url, forks=True), crew.start(store.url)
    parent.ask("acquire", lock="one", ttl=30)
    child = parent.fork()
    if uses_locks:
        child.ask("acquire", lock="two", ttl=30)
    waiter.tell("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    parent.kill()
    entered = waiter.hear()["acquired"]

    report(f"in {(entered - killed) * 1e3:.1f} ms after the parent's death")
    assert entered - killed < 5.0
    assert child.ask("state", lock="one")["lost"] is True
    if uses_locks:
        child.ask("check", lock="two")
        child.ask("release", lock="two")


@pytest.mark.parametrize("how", ["closes its client", "ends", "takes a lock and ends", "takes a lock and closes"])
def test_a_child_that_goes_does_not_disturb_its_parent_s_lock(
    how: str, crew: Crew, store: Store, observer: Observer
) -> None:
    parent, other = crew.start(store.url, forks=True), crew.start(store.url)
    parent.ask("acquire", lock="one", ttl=30)
    child = parent.fork()

    if "takes" in how:
        child.ask("acquire", lock="two", ttl=30)
    if "close" in how:
        child.ask("close")
    else:
        child.tell("end")
        child.hear()

    parent.ask("check", lock="one")
    assert observer.holders("one") == [parent.pid]
    assert other.ask("acquire", lock="one", timeout=0)["acquired"] is None
    parent.ask("renew", lock="one")
    parent.ask("release", lock="one")
    eventually(lambda: observer.holders("two") == [])


@pytest.mark.parametrize("goes", ["parent", "child"])
def test_parent_and_child_go_on_excluding_others_when_one_of_the_two_has_closed(
    goes: str, crew: Crew, store: Store
) -> None:
    parent, other = crew.start(store.url, forks=True), crew.start(store.url)
    parent.ask("acquire", lock="one")
    child = parent.fork()
    child.ask("acquire", lock="two")
    child.ask("release", lock="two")

    (parent if goes == "parent" else child).ask("close")
    other.ask("acquire", lock="three")
    stays = child if goes == "parent" else parent

    assert stays.ask("acquire", lock="three", timeout=0)["acquired"] is None


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage's own lock may be taken when the child is made")
def test_a_child_never_hangs_on_what_another_thread_of_its_parent_was_doing(crew: Crew, store: Store) -> None:
    parent = crew.start(store.url)

    outcomes = parent.ask("fork_in_a_crowd", times=100, backoff=10.0)["outcomes"]

    report(f"{outcomes}")
    assert outcomes == {"fine": 100}, parent.errors()


def test_a_child_made_while_the_file_was_busy_does_not_believe_in_locks_that_it_has_not(
    crew: Crew, store: Store
) -> None:
    parent, stranger, other = crew.start(store.url, forks=True), *crew.start_many(2, store.url)
    parent.ask("acquire", lock="one")
    stranger.ask("begin_raw")
    parent.ask("acquire_in_background", lock="two")
    child = parent.fork()  # while that thread is at it
    stranger.ask("commit_raw")

    with contextlib.suppress(Refused):
        child.ask("acquire", lock="of its own", timeout=5)
    assert parent.ask("background_outcome", timeout=20)["outcome"] == "acquired"
    parent.ask("close")
    other.ask("acquire", lock="three")
    in_child = None
    with contextlib.suppress(Refused):  # not to use the file at all would be right too
        in_child = child.ask("acquire", lock="three", timeout=0)["acquired"]

    assert in_child is None, "both hold it"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_client_can_be_handed_to_a_child_of_multiprocessing(method: str, crew: Crew, store: Store) -> None:
    parent = crew.start(store.url)
    mine = parent.ask("acquire", lock="one")

    child = parent.ask("multiprocess", method=method, lock="two")

    assert child["exitcode"] == 0
    assert child["fence"] > mine["fence"]
    assert child["holders"] == [child["pid"]]
    parent.ask("check", lock="one")
    parent.ask("release", lock="one")
    parent.release()
    assert store.tickets == 0
