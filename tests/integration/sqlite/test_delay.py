"""Hazard: the lock of a dead holder with a delay is granted too early, or never, or a clean-up removes its ticket."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.tickets import Granted, Waiting
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.sqlite.conftest import Store
from tests.support.processes import PATIENCE, WorkerPool, now

TTL = 1.5  # seconds, which include the delay


@pytest.fixture
def open_verbs(store: Store) -> Iterator[Callable[[], Verbs]]:
    opened: list[Verbs] = []

    def open_verbs() -> Verbs:
        opened.append(Verbs(store.url))
        return opened[-1]

    yield open_verbs
    for verbs in opened:
        verbs.close()


def test_the_delay_of_a_dead_holder_blocks_others_until_its_ttl_has_passed(open_verbs: Callable[[], Verbs]) -> None:
    holder, waiter = open_verbs(), open_verbs()
    began = waiter.runtime.now()
    holder.try_acquire(holder.ticket("one", ttl=TTL, delay=1.0))
    waiting = waiter.ticket("one")
    waiter.try_acquire(waiting)

    holder.close()  # its ticket stays, as after the death of a process
    polls = 0
    while isinstance(outcome := waiter.try_acquire(waiting), Waiting):
        polls += 1
        waiter.wait(waiting, outcome.poll_after)

    assert waiter.runtime.now() - began >= TTL
    assert polls < 5  # the waiter sleeps between polls


def test_a_killed_process_blocks_others_for_its_delay(pool: WorkerPool, store: Store) -> None:
    holder, waiter = pool.start_many(2, store.url)
    holder.call("acquire", lock="one", ttl=1.0, lock_delay=1.0)
    waiter.send("acquire", lock="one", timeout=PATIENCE)

    killed = now()
    holder.kill()

    assert waiter.receive(2 * PATIENCE)["acquired"] - killed >= 1.0


def test_a_dead_holder_without_a_delay_is_noticed_at_once(open_verbs: Callable[[], Verbs]) -> None:
    holder, waiter = open_verbs(), open_verbs()
    holder.try_acquire(holder.ticket("one"))
    waiting = waiter.ticket("one")
    waiter.try_acquire(waiting)

    holder.close()

    assert isinstance(waiter.try_acquire(waiting), Granted)


def test_opening_the_file_does_not_remove_a_dead_holder_with_a_delay(open_verbs: Callable[[], Verbs]) -> None:
    holder = open_verbs()
    holder.try_acquire(holder.ticket("kept", delay=1.0))
    holder.try_acquire(holder.ticket("not kept"))
    holder.close()

    other = open_verbs()

    assert isinstance(other.try_acquire(other.ticket("kept")), Waiting)
    assert isinstance(other.try_acquire(other.ticket("not kept")), Granted)
    assert len(other.inspect("kept").holders) == 1


def test_only_the_granted_ticket_with_a_delay_outlives_a_dead_session(open_verbs: Callable[[], Verbs]) -> None:
    # The first client that finds a ticket of the dead session removes all of its tickets that have no delay.
    holder, other = open_verbs(), open_verbs()
    holder.try_acquire(holder.ticket("kept", delay=1.0))
    holder.try_acquire(holder.ticket("not kept"))
    other.try_acquire(other.ticket("taken"))
    queued = holder.ticket("taken", delay=1.0)
    holder.try_acquire(queued)
    assert len(other.inspect("taken").waiters) == 1

    holder.close()

    assert isinstance(other.try_acquire(other.ticket("not kept")), Granted)
    assert isinstance(other.try_acquire(other.ticket("kept"), queue=False), Waiting)
    assert other.inspect("taken").waiters == ()  # a waiting ticket has no delay


def test_a_release_ends_a_lease_with_a_delay_at_once(open_verbs: Callable[[], Verbs]) -> None:
    holder, other = open_verbs(), open_verbs()
    ticket = holder.ticket("one", delay=1.0)
    holder.try_acquire(ticket)

    assert holder.release(ticket) == [True]

    assert isinstance(other.try_acquire(other.ticket("one"), queue=False), Granted)
