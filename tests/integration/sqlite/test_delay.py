"""Hazard: a dead holder's lock is handed on at once although it has a delay, or never; or a sweep removes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.tickets import Granted, Waiting
from tests.integration.sqlite.conftest import Store
from tests.support.processes import WorkerPool, now
from tests.support.verbs import Verbs

TTL = 1.5  # seconds, of which the last are the delay


@pytest.fixture
def opens(store: Store) -> Iterator[Callable[[], Verbs]]:
    opened: list[Verbs] = []

    def opens() -> Verbs:
        opened.append(Verbs(store.url))
        return opened[-1]

    yield opens
    for verbs in opened:
        verbs.close()


def test_a_dead_holders_delay_keeps_others_out_until_its_ttl_is_over(opens: Callable[[], Verbs]) -> None:
    holder, waiter = opens(), opens()
    begun = waiter.runtime.now()
    holder.try_acquire(holder.ticket("one", ttl=TTL, delay=1.0))
    waiting = waiter.ticket("one")
    waiter.try_acquire(waiting)

    holder.close()  # with its ticket: as a process that dies
    looks = 0
    while isinstance(outcome := waiter.try_acquire(waiting), Waiting):
        looks += 1
        waiter.wait(waiting, outcome.poll_after)

    assert TTL <= waiter.runtime.now() - begun < TTL + 1.0
    assert looks < 5  # by time, not by asking all the time


def test_a_killed_process_keeps_others_out_for_its_delay(pool: WorkerPool, store: Store) -> None:
    holder, waiter = pool.start_many(2, store.url)
    holder.call("acquire", lock="one", ttl=1.0, lock_delay=1.0)
    waiter.send("acquire", lock="one", timeout=10.0)

    killed = now()
    holder.kill()

    assert 1.0 <= waiter.receive()["acquired"] - killed < 3.0


def test_without_a_delay_a_death_is_noticed_at_once(opens: Callable[[], Verbs]) -> None:
    holder, waiter = opens(), opens()
    holder.try_acquire(holder.ticket("one"))
    waiting = waiter.ticket("one")
    waiter.try_acquire(waiting)

    holder.close()

    assert isinstance(waiter.try_acquire(waiting), Granted)


def test_whoever_opens_the_file_next_does_not_sweep_out_a_dead_holder_with_a_delay(opens: Callable[[], Verbs]) -> None:
    holder = opens()
    holder.try_acquire(holder.ticket("kept", delay=1.0))
    holder.try_acquire(holder.ticket("not kept"))
    holder.close()

    late = opens()

    assert isinstance(late.try_acquire(late.ticket("kept")), Waiting)
    assert isinstance(late.try_acquire(late.ticket("not kept")), Granted)
    assert len(late.inspect("kept").holders) == 1


def test_its_other_tickets_are_over_and_only_that_one_stays(opens: Callable[[], Verbs]) -> None:
    # The first to come across one of them removes all of that session that can be removed.
    holder, other = opens(), opens()
    holder.try_acquire(holder.ticket("kept", delay=1.0))
    holder.try_acquire(holder.ticket("not kept"))
    other.try_acquire(other.ticket("taken"))
    queued = holder.ticket("taken", delay=1.0)
    holder.try_acquire(queued)
    assert len(other.inspect("taken").waiters) == 1

    holder.close()

    assert isinstance(other.try_acquire(other.ticket("not kept")), Granted)
    assert isinstance(other.try_acquire(other.ticket("kept"), queue=False), Waiting)
    assert other.inspect("taken").waiters == ()  # a place in line has no delay


def test_a_release_ends_it_at_once(opens: Callable[[], Verbs]) -> None:
    holder, other = opens(), opens()
    ticket = holder.ticket("one", delay=1.0)
    holder.try_acquire(ticket)

    assert holder.release(ticket) == [True]

    assert isinstance(other.try_acquire(other.ticket("one"), queue=False), Granted)
