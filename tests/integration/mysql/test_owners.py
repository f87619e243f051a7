"""Hazard: a process of an owner is blocked by another process of it, or other owners are granted beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.tickets import Granted, LeaseGone, Live, Waiting
from holdfast.errors import NameConflict
from tests.support.mysql import shared
from tests.support.mysql.drivers import Driver
from tests.support.mysql.servers import Server
from tests.support.processes import eventually

Drive = Callable[[str], Driver]


@pytest.fixture
def driver(driver_of: Drive) -> Driver:
    return driver_of(shared.fresh_url())


def test_tickets_of_one_owner_are_granted_together_before_all_waiters(driver: Driver) -> None:
    one, two = driver.ticket("a", owner="ann"), driver.ticket("a", owner="ann")
    first = driver.try_acquire(one)
    stranger = driver.ticket("a")
    assert isinstance(driver.try_acquire(stranger, queue=True), Waiting)

    second = driver.try_acquire(two)

    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.fence == second.fence
    assert len(driver.inspect("a").holders) == 2
    assert driver.release(one) == [True]
    assert isinstance(driver.try_acquire(stranger, queue=True), Waiting)
    assert driver.release(two) == [True]
    third = driver.try_acquire(stranger, queue=True)
    assert isinstance(third, Granted)
    assert third.fence > first.fence


@pytest.mark.parametrize("other", ["", "Ann", "ann ", "änn", "ann\0"])
def test_owners_are_compared_exactly(driver: Driver, other: str) -> None:
    driver.try_acquire(driver.ticket("a", owner="ann"))

    assert isinstance(driver.try_acquire(driver.ticket("a", owner=other)), Waiting)
    assert isinstance(driver.try_acquire_all([driver.ticket("a", owner=other)])[0], Waiting)


def test_a_ticket_with_an_owner_waits_for_a_holder_without_one(driver: Driver) -> None:
    stranger = driver.ticket("a")
    driver.try_acquire(stranger)
    one, two = driver.ticket("a", owner="ann"), driver.ticket("a", owner="ann")
    assert isinstance(driver.try_acquire(one, queue=True), Waiting)
    assert isinstance(driver.try_acquire(two, queue=True), Waiting)

    driver.release(stranger)
    driver.wait(two, 0.3)
    assert isinstance(driver.try_acquire(two, queue=True), Waiting), "it is not its turn, and nobody of its owner is in"
    first = driver.try_acquire(one, queue=True)
    driver.wait(two, 20.0)
    second = driver.try_acquire(two, queue=True)

    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.fence == second.fence


def test_each_ticket_of_an_owner_has_its_own_lease(driver: Driver) -> None:
    short, long = driver.ticket("a", owner="ann", ttl=0.2), driver.ticket("a", owner="ann")
    driver.try_acquire(short)
    driver.try_acquire(long)

    eventually(lambda: len(driver.inspect("a").holders) == 1)

    outcomes = driver.renew(short, long)
    assert isinstance(outcomes[0], LeaseGone)
    assert isinstance(outcomes[1], Live)
    assert isinstance(driver.try_acquire(driver.ticket("a")), Waiting)
    assert driver.release(short, long) == [False, True]
    assert isinstance(driver.try_acquire(driver.ticket("a")), Granted)


def test_break_lock_ends_the_leases_of_all_tickets_of_the_owner(driver: Driver) -> None:
    tickets = [driver.ticket("a", owner="ann") for _ in range(3)]
    outcomes = [driver.try_acquire(ticket) for ticket in tickets]
    assert isinstance(outcomes[0], Granted)

    assert driver.break_lock("a", outcomes[0].fence)

    assert driver.inspect("a").holders == ()
    assert driver.release(*tickets) == [False, False, False]


def test_a_repeated_try_acquire_is_granted_once_with_the_shared_fence(driver: Driver) -> None:
    one, two = driver.ticket("a", owner="ann"), driver.ticket("a", owner="ann")
    driver.try_acquire(one)
    fence = driver.try_acquire(two)

    again = driver.try_acquire(one)

    assert isinstance(fence, Granted)
    assert isinstance(again, Granted)
    assert again.fence == fence.fence
    assert len(driver.inspect("a").holders) == 2


def test_a_late_request_does_not_change_the_fence_of_a_granted_ticket(driver: Driver) -> None:
    one, two = driver.ticket("a", owner="ann"), driver.ticket("a", owner="ann")
    first = driver.try_acquire(one)

    driver.try_acquire(one)
    second = driver.try_acquire(two)

    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fence == first.fence


def test_readers_and_other_methods_are_excluded_too(server: Server, database: str, url: str, driver_of: Drive) -> None:
    driver = driver_of(url)
    one = driver.ticket("a", owner="ann")
    driver.try_acquire(one)

    assert isinstance(driver.try_acquire(driver.ticket("a")._replace(exclusive=False, limit=None)), Waiting)
    with pytest.raises(NameConflict, match="in use with method=unique"):
        other = driver_of(server.url_of(database, method="version"))
        other.try_acquire(other.ticket("a"))

    driver.release(one)
    reader = driver.ticket("a")._replace(exclusive=False, limit=None)
    assert isinstance(driver.try_acquire(reader), Granted)
    assert isinstance(driver.try_acquire(one._replace(nonce="5" * 32)), Waiting)


def test_an_owner_costs_one_request_to_acquire_and_one_to_release(driver: Driver) -> None:
    driver.read_registers("warm")
    ticket = driver.ticket("a", owner="ann")
    before = driver.requests

    driver.try_acquire(ticket)
    driver.release(ticket)

    assert driver.requests - before == 2
