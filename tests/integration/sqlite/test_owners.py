"""Hazard: several tickets of one owner are granted, and the first release grants the lock to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.tickets import Granted, Live, Waiting
from tests.integration.sqlite.conftest import Store
from tests.support.verbs import Verbs


@pytest.fixture(params=["memory", "sqlite"])
def opens(request: pytest.FixtureRequest, store: Store) -> Iterator[Callable[[], Verbs]]:
    """Also for memory://, which is the reference."""
    url = store.url if request.param == "sqlite" else f"memory://{store.path}"
    opened: list[Verbs] = []

    def opens() -> Verbs:
        opened.append(Verbs(url))
        return opened[-1]

    yield opens
    for verbs in opened:
        verbs.close()


def test_a_waiter_is_blocked_until_the_last_ticket_of_the_owner_is_released(opens: Callable[[], Verbs]) -> None:
    one, other = opens(), opens()
    first, second = one.ticket("a", owner="x"), other.ticket("a", owner="x")
    fence = _fence(one.try_acquire(first))
    waiting = other.ticket("a")
    assert isinstance(other.try_acquire(waiting), Waiting)

    assert _fence(other.try_acquire(second)) == fence  # before the queue
    assert one.release(first) == [True]
    assert isinstance(other.try_acquire(waiting), Waiting)
    assert other.release(second) == [True]

    assert _fence(other.try_acquire(waiting)) > fence


def test_waiting_tickets_of_the_owner_are_woken_and_granted(opens: Callable[[], Verbs]) -> None:
    one, other = opens(), opens()
    stranger = one.ticket("a")
    one.try_acquire(stranger)
    first, between, second = one.ticket("a", owner="x"), other.ticket("a"), other.ticket("a", owner="x")
    for ticket in (first, between, second):
        assert isinstance((one if ticket is first else other).try_acquire(ticket), Waiting)

    one.release(stranger)
    fence = _fence(one.try_acquire(first))

    assert other.wait(second, 0.9) < 0.5
    assert _fence(other.try_acquire(second)) == fence
    assert isinstance(other.try_acquire(between), Waiting)
    assert len(one.inspect("a").holders) == 2


def test_a_repeated_request_gets_the_same_fence(opens: Callable[[], Verbs]) -> None:
    one = opens()
    first, second = one.ticket("a", owner="x"), one.ticket("a", owner="x")
    fence = _fence(one.try_acquire(first))
    one.try_acquire(second)

    assert _fence(one.try_acquire(second)) == fence
    assert _fence(one.try_acquire(first)) == fence
    assert len(one.inspect("a").holders) == 2


def test_another_owner_is_queued(opens: Callable[[], Verbs]) -> None:
    one = opens()
    one.try_acquire(one.ticket("a", owner="x"))

    assert isinstance(one.try_acquire(one.ticket("a", owner="y")), Waiting)
    assert isinstance(one.try_acquire(one.ticket("a")), Waiting)


def test_each_ticket_of_an_owner_expires_separately(opens: Callable[[], Verbs]) -> None:
    one = opens()
    short, long = one.ticket("a", owner="x", ttl=0.05), one.ticket("a", owner="x")
    fence = _fence(one.try_acquire(short))
    one.try_acquire(long)
    waiting = one.ticket("a")
    one.try_acquire(waiting)

    one.wait(waiting, 0.1)

    assert isinstance(one.try_acquire(waiting), Waiting)
    assert isinstance(one.renew(long)[0], Live)
    assert one.break_lock("a", fence)
    assert _fence(one.try_acquire(waiting)) > fence


def test_breaking_its_fence_ends_all_of_an_owners_tickets(opens: Callable[[], Verbs]) -> None:
    one = opens()
    tickets = [one.ticket("a", owner="x") for _ in range(3)]
    (fence,) = {_fence(one.try_acquire(ticket)) for ticket in tickets}

    assert one.break_lock("a", fence)

    assert one.inspect("a").holders == ()
    assert one.release(*tickets) == [False, False, False]


def test_the_death_of_one_process_keeps_the_tickets_of_others(store: Store) -> None:
    one, other = Verbs(store.url), Verbs(store.url)
    one.try_acquire(one.ticket("a", owner="x"))
    kin, waiting = other.ticket("a", owner="x"), other.ticket("a")
    other.try_acquire(kin)
    other.try_acquire(waiting)

    one.close()  # its ticket stays, as after the death of a process

    assert isinstance(other.try_acquire(waiting), Waiting)
    other.release(kin)
    assert isinstance(other.try_acquire(waiting), Granted)
    other.close()


def _fence(outcome: Granted | Waiting) -> int:
    assert isinstance(outcome, Granted)
    return outcome.fence
