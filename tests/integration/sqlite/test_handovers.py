"""Hazard: a release grants the lock to a dead or stopped waiter, or a waiter trusts its notification for too long."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import holdfast
from holdfast.core.clock import lease_deadline
from holdfast.core.handovers import POLLED_MAX, SPENT_MAX
from holdfast.core.tickets import POLL_INTERVAL, WAITER_LEASE, Claim, Granted, Waiting
from holdfast_lab.conformance.verbs import PATIENCE, Verbs
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.processes import Worker, WorkerPool, eventually, now

TTL = 30.0


@pytest.fixture
def holder(store: Store) -> Iterator[Verbs]:
    with closing(Verbs(store.url)) as verbs:
        yield verbs


@pytest.fixture
def waiter(store: Store) -> Iterator[Verbs]:
    with closing(Verbs(store.url)) as verbs:
        yield verbs


@contextmanager
def no_transactions(store: Store) -> Iterator[None]:
    """Another transaction is open, so each transaction of a client fails at its deadline."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def queued(waiter: Verbs, **options: object) -> Claim:
    ticket = waiter.ticket("one", **options)
    assert isinstance(waiter.try_acquire(ticket), Waiting)
    return ticket


def held(holder: Verbs) -> Claim:
    ticket = holder.ticket("one")
    assert isinstance(holder.try_acquire(ticket), Granted)
    return ticket


def handed(holder: Verbs, waiter: Verbs, **options: object) -> Claim:
    """A ticket that a release has granted. If its last poll was too old on a busy machine, try again."""
    while True:
        first, second = held(holder), queued(waiter, **options)
        holder.release(first)
        if waiter.runtime.now() - second.state.sent < POLLED_MAX:
            return second
        waiter.release(second)


def test_a_hand_over_needs_no_transaction_of_the_new_holder(store: Store, holder: Verbs, waiter: Verbs) -> None:
    ticket = handed(holder, waiter)
    sent = ticket.state.sent
    with no_transactions(store):
        assert waiter.wait(ticket, PATIENCE) < PATIENCE
        outcome = waiter.try_acquire(ticket)

    assert isinstance(outcome, Granted)
    assert outcome.deadline == lease_deadline(sent, ticket.ttl, 0.0)
    (holder_info,) = waiter.inspect("one").holders
    assert holder_info.fence == outcome.fence
    assert waiter.release(ticket) == [True]
    assert store.tickets == 0


def test_a_hand_over_within_one_client_needs_no_transaction_either(store: Store, holder: Verbs) -> None:
    ticket = handed(holder, holder)
    with no_transactions(store):
        holder.wait(ticket, PATIENCE)
        assert isinstance(holder.try_acquire(ticket), Granted)


def test_a_ticket_polls_again_when_the_notification_of_its_hand_over_is_late(holder: Verbs, waiter: Verbs) -> None:
    ticket = handed(holder, waiter, ttl=5.0)
    waiter.wait(ticket, PATIENCE)
    notified = ticket.state.fence

    eventually(lambda: waiter.runtime.now() > ticket.state.sent + SPENT_MAX * ticket.ttl)
    outcome = waiter.try_acquire(ticket)

    assert isinstance(outcome, Granted)
    assert outcome.fence > notified > 0


@pytest.mark.parametrize("options", [{"owner": "x"}, {"delay": 1.0}, {"exclusive": False, "limit": None}])
def test_readers_owners_and_tickets_with_a_delay_are_only_woken(
    holder: Verbs, waiter: Verbs, options: dict[str, object]
) -> None:
    first, second = held(holder), queued(waiter, **options)

    holder.release(first)
    waiter.wait(second, PATIENCE)

    assert not waiter.inspect("one").holders
    assert isinstance(waiter.try_acquire(second), Granted)


def test_a_hand_over_is_not_used_when_its_file_was_replaced(store: Store, holder: Verbs, waiter: Verbs) -> None:
    ticket = handed(holder, waiter)
    waiter.wait(ticket, PATIENCE)

    for file in store.path.parent.glob("locks.db*"):
        if file.is_file():
            file.unlink()
    assert isinstance(holder.try_acquire(holder.ticket("one")), Granted)

    assert isinstance(waiter.try_acquire(ticket), Waiting)


def test_a_withdrawn_hand_over_is_handed_to_the_next_waiter(store: Store, holder: Verbs, waiter: Verbs) -> None:
    ticket, last = handed(holder, waiter), queued(holder)

    assert waiter.release(ticket) == [True]  # as if the call had timed out before it received the notification

    holder.wait(last, PATIENCE)
    assert isinstance(holder.try_acquire(last), Granted)
    holder.release(last)
    assert store.tickets == 0


def queued_up(pool: WorkerPool, store: Store, observer: Observer, *, ttl: float) -> list[Worker]:
    """Start three processes: the holder of the lock, and two waiters in order. `ttl` applies to the first waiter."""
    holder, first, second = workers = pool.start_many(3, store.url)
    holder.call("acquire", lock="one")
    first.send("acquire", lock="one", ttl=ttl)
    observer.await_queue("one", first.pid)
    second.send("acquire", lock="one", ttl=TTL)
    observer.await_queue("one", first.pid, second.pid)
    return workers


def test_a_killed_waiter_is_skipped_although_it_polled_just_now(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, killed, other = queued_up(pool, store, observer, ttl=TTL)

    killed.kill()
    holder.call("release", lock="one")

    other.receive()
    other.call("release", lock="one")
    assert store.tickets == 0


def test_a_waiter_that_is_killed_after_its_hand_over_is_replaced_at_once(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, killed, other = queued_up(pool, store, observer, ttl=300)

    killed.stop()
    holder.call("release", lock="one")
    killed.kill()

    other.receive()
    other.call("release", lock="one")


def test_a_waiter_that_has_been_stopped_for_a_while_gets_no_hand_over(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, stopped, other = queued_up(pool, store, observer, ttl=300)

    stopped.stop()
    with holdfast.Client(store.url) as client:
        eventually(lambda: client.inspect("one").waiters[0].remaining < WAITER_LEASE - POLL_INTERVAL)
    released_at = now()
    holder.call("release", lock="one")

    fence = other.receive()["fence"]
    assert now() - released_at < 100
    stopped.resume()
    other.call("release", lock="one")
    assert stopped.receive()["fence"] > fence
    stopped.call("release", lock="one")


def test_a_waiter_stopped_just_before_its_hand_over_acquires_again_when_the_hand_over_has_expired(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, stopped, other = queued_up(pool, store, observer, ttl=2)

    stopped.stop()
    holder.call("release", lock="one")
    second = other.receive()
    stopped.resume()

    assert stopped.is_silent(0.1), "the hand-over has expired, and the waiter is queued again"
    other.call("check", lock="one")
    other.call("release", lock="one")
    assert stopped.receive()["fence"] > second["fence"]
    stopped.call("release", lock="one")
