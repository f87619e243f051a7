"""Hazard: a paused process (SIGSTOP, a debugger) assumes that it holds its lock when it resumes, or blocks all others
because it was the first waiter.
"""

from __future__ import annotations

import pytest

from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import Refused, WorkerPool, now

WOKEN_LEASE = 1.0  # seconds for which a woken waiter keeps its place without a poll
POLL_INTERVAL = 1.0  # seconds after which the next waiter polls


def test_a_holder_stopped_past_its_ttl_learns_of_its_loss_at_the_first_check(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, other = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one", ttl=1)
    other.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", other.pid)

    holder.stop()
    new = other.receive()
    holder.resume()

    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")
    assert new["fence"] > old["fence"]
    assert holder.call("state", lock="one")["held"] is False
    other.call("check", lock="one")  # the other lease is not disturbed
    other.call("release", lock="one")


def test_a_holder_stopped_past_its_ttl_leaves_its_body_with_lock_lost(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, other = pool.start_many(2, store.url)
    old = holder.call("body", lock="one", ttl=1)
    other.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", other.pid)

    holder.stop()
    new = other.receive()
    holder.resume()
    holder.send("leave the body")

    with pytest.raises(Refused, match="LockLost"):
        holder.receive()
    assert new["fence"] > old["fence"]
    other.call("release", lock="one")


def test_a_stopped_first_waiter_delays_the_others_for_its_woken_lease_and_acquires_later(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, stopped, *others = pool.start_many(4, store.url)
    holder.call("acquire", lock="one")
    queue = []
    for waiter in (stopped, *others):
        waiter.send("acquire", lock="one")
        queue.append(waiter.pid)
        observer.await_queue("one", *queue)
    stopped.stop()
    assert others[0].is_silent(1.7)  # so that it does not poll by chance when the woken lease has just expired

    leaving = holder.call("release", lock="one")["leaving"]
    entered = [others[0].receive()["acquired"]]
    others[0].call("release", lock="one")
    entered.append(others[1].receive()["acquired"])

    held_up = entered[0] - leaving
    report(f"the second in line was held up {held_up:.2f} s; the woken lease is {WOKEN_LEASE:g} s")
    stopped.resume()
    assert stopped.is_silent(0.1)  # it lost its place, but still waits
    others[1].call("release", lock="one")
    assert stopped.receive()["acquired"] > entered[1]
    assert held_up < WOKEN_LEASE + POLL_INTERVAL + 1.2  # with the poll interval of later waiters it could be 3.5


def test_a_first_waiter_that_is_stopped_briefly_keeps_its_place(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, stopped, other = pool.start_many(3, store.url)
    holder.call("acquire", lock="one")
    stopped.send("acquire", lock="one")
    observer.await_queue("one", stopped.pid)
    other.send("acquire", lock="one")
    observer.await_queue("one", stopped.pid, other.pid)

    stopped.stop()
    leaving = holder.call("release", lock="one")["leaving"]
    stopped.resume()
    if now() - leaving > WOKEN_LEASE / 2:
        pytest.skip("this machine was too slow to resume it in time")

    assert stopped.receive()["acquired"] > leaving
    assert other.is_silent(0.1)
    stopped.call("release", lock="one")
    other.receive()
