"""Hazard: two processes of one owner block each other, or other owners are granted the lock beside them."""

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


@pytest.mark.parametrize("other", ["", "Ann", "ann ", "änn", "ann\0"])
def test_owners_are_compared_exactly(driver: Driver, other: str) -> None:
    driver.try_acquire(driver.ticket("a", owner="ann"))

    assert isinstance(driver.try_acquire(driver.ticket("a", owner=other)), Waiting)
    assert isinstance(driver.try_acquire_all([driver.ticket("a", owner=other)])[0], Waiting)


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


def test_a_late_request_does_not_change_the_fence_of_a_granted_ticket(driver: Driver) -> None:
    ticket_a, ticket_b = driver.ticket("a", owner="ann"), driver.ticket("a", owner="ann")
    first = driver.try_acquire(ticket_a)

    driver.try_acquire(ticket_a)
    second = driver.try_acquire(ticket_b)

    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.fence == first.fence


def test_another_method_is_refused_while_an_owner_holds_the_lock(
    server: Server, database: str, url: str, driver_of: Drive
) -> None:
    driver = driver_of(url)
    driver.try_acquire(driver.ticket("a", owner="ann"))
    other = driver_of(server.url_of(database, method="version"))

    with pytest.raises(NameConflict, match="in use with method=unique"):
        other.try_acquire(other.ticket("a"))


def test_an_owner_costs_one_request_to_acquire_and_one_to_release(driver: Driver) -> None:
    used = driver.ticket("a", owner="ann")
    driver.try_acquire(used)  # one new row in 256 costs another request, which removes old rows
    driver.release(used)
    ticket = driver.ticket("a", owner="ann")
    before = driver.requests

    driver.try_acquire(ticket)
    driver.release(ticket)

    assert driver.requests - before == 2
