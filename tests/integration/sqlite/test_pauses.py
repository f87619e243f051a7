"""Hazard: a paused process (SIGSTOP, a debugger) assumes that it holds its lock when it resumes, or blocks all others
because it was the first waiter.
"""

from __future__ import annotations

import pytest

from holdfast.core.tickets import POLL_INTERVAL, WOKEN_LEASE
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import Refused, WorkerPool, now


def test_the_first_check_reports_the_loss_when_a_holder_was_stopped_past_its_ttl(
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
    other.call("check", lock="one")  # the other lease is still held
    other.call("release", lock="one")


def test_the_end_of_the_body_raises_lock_lost_when_a_holder_was_stopped_past_its_ttl(
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
    assert others[0].is_silent(1.7)  # so that its next poll is not just after the end of the woken lease by chance

    released = holder.call("release", lock="one")["leaving"]
    acquired = [others[0].receive()["acquired"]]
    others[0].call("release", lock="one")
    acquired.append(others[1].receive()["acquired"])

    delay = acquired[0] - released
    report(f"the second waiter was delayed for {delay:.2f} s; the woken lease is {WOKEN_LEASE:g} s")
    stopped.resume()
    assert stopped.is_silent(0.1)  # it lost its turn, but still waits
    others[1].call("release", lock="one")
    assert stopped.receive()["acquired"] > acquired[1]
    assert delay < WOKEN_LEASE + POLL_INTERVAL + 1.2  # with the poll interval of later waiters it could be 3.5


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
    released = holder.call("release", lock="one")["leaving"]
    stopped.resume()
    if now() - released > WOKEN_LEASE / 2:
        pytest.skip("this machine was too slow to resume the waiter in time")

    assert stopped.receive()["acquired"] > released
    assert other.is_silent(0.1)
    stopped.call("release", lock="one")
    other.receive()
